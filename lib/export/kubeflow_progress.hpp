// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <map>
#include <optional>
#include <string>

namespace elastrun::exporter {

/// How far training is, as Kubeflow's Trainer takes it (KEP-2779): the share of its steps that is
/// done, how long the rest takes at the pace since the workers last started, and what rank 0
/// measures. From the samples of a run; those of one agent tell of rank 0. Pure.
class KubeflowProgress {
 public:
  static constexpr std::size_t kMetrics = 256, kText = 64;  // more is refused there

  /// `steps`: of the whole training, if that is known.
  explicit KubeflowProgress(std::optional<std::int64_t> steps) : steps_(steps) {}

  /// Whether the record tells anything of it.
  bool take(const telemetry::Record& record);
  /// The body of a request at that time.
  std::string body(WallTime now) const;

 private:
  struct Step {
    std::int64_t number = 0;
    TimePoint at{};
  };
  bool take_entry(const telemetry::Record& record);
  void take_end(std::int64_t number, TimePoint at);
  void take_step(std::int64_t number, TimePoint at);
  std::int64_t done() const;
  std::optional<std::int64_t> seconds_left() const;

  const std::optional<std::int64_t> steps_;
  std::optional<Step> first_, last_;           // since the workers' last start
  bool told_ = false;                          // steps, as samples
  std::optional<std::int64_t> begun_;          // of a recorder: the last one that has
  bool from_zero_ = false;                     // and not from 1 steps are counted
  std::map<std::string, std::string> values_;  // by name
};

}  // namespace elastrun::exporter
