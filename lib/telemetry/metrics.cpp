// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics.hpp"

#include "core/text.hpp"

#include <fmt/format.h>
#include <map>

namespace elastrun::telemetry::metrics {

/// Which handler a group has is looked up for each metric: torchelastic's getStream.
class Metrics::HandlerSink final : public Sink {
 public:
  void consume(const Record& record) override {
    const auto found = by_group_.find(record.scope);
    const auto handler = found == by_group_.end() ? default_ : found->second;
    if (!handler) return;
    handler->emit({to_seconds(record.stamp.wall), record.scope, record.name, record.value});
  }
  void set(std::shared_ptr<MetricHandler> handler, const std::optional<std::string>& group) {
    (group ? by_group_[*group] : default_) = std::move(handler);
  }

 private:
  std::shared_ptr<MetricHandler> default_;
  std::map<std::string, std::shared_ptr<MetricHandler>, std::less<>> by_group_;
};

Metrics::Metrics(Pipeline& pipeline)
    : pipeline_(pipeline), handlers_(std::make_shared<HandlerSink>()) {}

Metrics::~Metrics() {
  if (route_ != 0) pipeline_.unroute(route_);
}

void Metrics::configure(std::shared_ptr<MetricHandler> handler, std::optional<std::string> group) {
  handlers_->set(std::move(handler), group);
  // Once, with the first handler: until then no sample is made for it.
  if (route_ == 0) route_ = pipeline_.route({{}, {}, Record::Kind::Sample}, handlers_);
}

void Metrics::put_profile(std::string_view base, bool success, Duration duration,
                          std::string_view group) {
  if (!pipeline_.wants(group)) return;
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  put(fmt::format("{}.{}", base, success ? "success" : "failure"), 1, group);
  put(fmt::format("{}.duration.ms", base), whole, group);
}

void put_run(Metrics& metrics, const RunOutcome& outcome) {
  const auto put = [&](std::string_view name, int value) {
    metrics.put(fmt::format("workers.{}.{}", outcome.role, name), value);
  };
  const bool retried = outcome.refilled || outcome.remaining_restarts != outcome.max_restarts;
  const double share = (outcome.remaining_restarts + 1.0) / (outcome.max_restarts + 1.0);
  // torchelastic's formula: 0 without a restart.
  put("flakiness", outcome.failed ? 100 : static_cast<int>(100 - 100 * share));
  put("run_total", 1);
  put("run_success_with_retries", !outcome.failed && retried);
  put("run_success_no_retries", !outcome.failed && !retried);
  put("run_failed_with_retries", outcome.failed && retried);
  put("run_failed_no_retries", outcome.failed && !retried);
}

Metrics& process_metrics() {
  static Metrics metrics(process_pipeline());
  return metrics;
}

void configure(std::shared_ptr<MetricHandler> handler, std::optional<std::string> group) {
  process_metrics().configure(std::move(handler), std::move(group));
}

}  // namespace elastrun::telemetry::metrics
