// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "telemetry/record.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun::ctl {

/// What another restart policy would have decided at each failure of a recorded job: the rule of
/// the coordinator itself, fed with the recorded causes in their own time. It cannot know what
/// would have happened after a decision that differs; where it ends the job, the rest is left out.
/// Pure.
class RestartReplay {
 public:
  RestartReplay(spec::RestartPolicy policy, std::vector<spec::RestartRuleLine> rules,
                std::optional<int> max_restarts)
      : policy_(policy), rules_(std::move(rules)), max_restarts_(max_restarts) {}

  /// The records of a journal, in order.
  void take(const telemetry::Record& record);
  /// A line for each failure, and what comes of them; at most 100 columns but for causes.
  std::string text() const;
  json::object json() const;

 private:
  struct Row {
    Duration at{};  // since the start of the job
    std::string cause, recorded;
    rendezvous::RestartDecision decision;
  };
  void decide(const telemetry::Record& record, bool restarted);
  std::string total() const;

  const spec::RestartPolicy policy_;
  const std::vector<spec::RestartRuleLine> rules_;
  const std::optional<int> max_restarts_;
  std::optional<rendezvous::RestartRule> rule_;
  int recorded_max_ = 0;
  std::optional<WallTime> start_;
  WallTime last_{};
  std::vector<Row> rows_;
  std::optional<Duration> ended_at_;
  int after_end_ = 0;  // failures that would not have come
};

}  // namespace elastrun::ctl
