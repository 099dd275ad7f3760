// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/route.hpp"

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

/// torchelastic's metrics: a facade of the pipeline. A metric is a Sample record whose scope is the
/// metric's group; a handler is a sink behind an adapter. With no handler nothing is built.
namespace elastrun::telemetry::metrics {

constexpr std::string_view kDefaultGroup = "torchelastic";

struct MetricData {
  double timestamp = 0;  // seconds since the epoch
  std::string group_name;
  std::string name;
  Value value;  // a whole number most of the time
};

class MetricHandler {
 public:
  virtual ~MetricHandler() = default;
  virtual void emit(const MetricData& data) = 0;
};

template <class T>
concept Number = std::integral<T> || std::floating_point<T>;
template <Number T>
Value to_value(T number) {
  if constexpr (std::integral<T>) return static_cast<std::int64_t>(number);
  return static_cast<double>(number);
}

/// The facade of one pipeline, which it borrows.
class Metrics {
 public:
  explicit Metrics(Pipeline& pipeline);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// `handler` gets the metrics of `group`; without a group those of all groups that have no
  /// handler of their own. Looked up when a metric is put, so the order of calls does not matter.
  void configure(std::shared_ptr<MetricHandler> handler, std::optional<std::string> group = {});

  void put(std::string_view name, Number auto value, std::string_view group = kDefaultGroup) {
    if (!pipeline_.has_routes()) return;
    pipeline_.sample(std::string(group), std::string(name), to_value(value));
  }
  /// "BASE.success" or "BASE.failure", then "BASE.duration.ms" in whole milliseconds.
  void put_profile(std::string_view base, bool success, Duration duration,
                   std::string_view group = kDefaultGroup);

 private:
  class HandlerSink;
  Pipeline& pipeline_;
  std::shared_ptr<HandlerSink> handlers_;
  RouteId route_ = 0;  // 0: no listener
};

/// How a run of a group ended, for `put_run`.
struct RunOutcome {
  std::string role = "default";
  bool failed = false;
  int remaining_restarts = 0, max_restarts = 0;
  /// It has restarted, although as many restarts remain as at first: checkpoints gave them back.
  bool refilled = false;
};
/// What torchelastic puts at the end of a run: flakiness, run_total and the four kinds of ending.
void put_run(Metrics& metrics, const RunOutcome& outcome);

/// The facade of process_pipeline(), with torchelastic's names.
Metrics& process_metrics();
void configure(std::shared_ptr<MetricHandler> handler, std::optional<std::string> group = {});
void put_metric(std::string_view name, Number auto value, std::string_view group = kDefaultGroup) {
  process_metrics().put(name, value, group);
}

}  // namespace elastrun::telemetry::metrics
