// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics.hpp"

#include "core/text.hpp"
#include "telemetry/value.hpp"

#include <fmt/format.h>
#include <map>
#include <unistd.h>

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

ConsoleMetricHandler::ConsoleMetricHandler(std::function<void(std::string_view)> write)
    : write_(std::move(write)) {
  if (write_) return;
  write_ = [](std::string_view line) {
    // Past the buffer of stdout: a child that is forked with something in it would write that
    // again.
    [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, line.data(), line.size());
  };
}

void ConsoleMetricHandler::emit(const MetricData& data) {
  write_(fmt::format("[{}][{}]: {}={}\n", python_float(data.timestamp), data.group_name, data.name,
                     to_text(data.value)));
}

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

void Metrics::put_value(std::string_view name, Value value, std::string_view group) {
  pipeline_.sample(std::string(group), std::string(name), std::move(value));
}

void Metrics::put_profile(std::string_view base, bool success, Duration duration,
                          std::string_view group) {
  if (!pipeline_.wants(group)) return;
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  put(fmt::format("{}.{}", base, success ? "success" : "failure"), 1, group);
  put(fmt::format("{}.duration.ms", base), whole, group);
}

std::string profile_name(std::string_view function) {
  // GCC puts the template arguments there ("[with T = int]"), which would make a name for each of
  // them.
  function = function.substr(0, function.find(" [with"));
  // What is in brackets of any kind is left out. The parameters are the last of them; a parenthesis
  // before "::" belongs to an anonymous namespace or to the function around a local class.
  std::string name;
  int depth = 0;
  for (std::size_t i = 0; i < function.size(); ++i) {
    const char c = function[i];
    if (c == '(' && depth == 0 && function.find(")::", i) == function.npos) break;
    if (c == '<' || c == '(' || c == '{') ++depth;
    if (depth == 0) name += c;
    if (c == '>' || c == ')' || c == '}') --depth;
  }
  name = name.substr(name.rfind(' ') + 1);
  std::vector<std::string> parts = split(name, ':');
  std::erase(parts, "");
  if (parts.size() > 2) parts.erase(parts.begin(), parts.end() - 2);
  return join(parts, ".");
}

Prof Metrics::prof(std::string base, std::string group) {
  return Prof(*this, std::move(base), std::move(group));
}

Prof Metrics::prof(std::source_location where) {
  return prof(profile_name(where.function_name()));
}

Prof::Prof(Metrics& metrics, std::string base, std::string group)
    : metrics_(metrics),
      base_(std::move(base)),
      group_(std::move(group)),
      start_(metrics.clock().now()),
      exceptions_(std::uncaught_exceptions()) {}

Prof::~Prof() {
  // More than at its start: a Prof may live in a destructor that runs for an exception.
  const bool failed = failed_ || std::uncaught_exceptions() > exceptions_;
  metrics_.put_profile(base_, !failed, metrics_.clock().now() - start_, group_);
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
