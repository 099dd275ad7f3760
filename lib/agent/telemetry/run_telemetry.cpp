// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_telemetry.hpp"

#include "agent/goodput/scheduled_since.hpp"
#include "telemetry/events.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

namespace elastrun::agent {
namespace {

/// Hands every record of a run to the handlers of this process.
class ToProcessPipeline final : public telemetry::Sink {
 public:
  void consume(const telemetry::Record& record) override {
    telemetry::process_pipeline().emit(record);
  }
  void flush(TimePoint deadline) override { telemetry::process_pipeline().flush(deadline); }
};

}  // namespace

Started<std::unique_ptr<RunTelemetry>> RunTelemetry::make(Parts parts) {
  std::unique_ptr<RunTelemetry> made(new RunTelemetry(std::move(parts)));
  if (const auto done = made->attach_event_handler(); !done) return std::unexpected(done.error());
  if (const auto done = made->open_sinks(); !done) return std::unexpected(done.error());
  made->watch_goodput();
  return made;
}

RunTelemetry::RunTelemetry(Parts parts)
    : parts_(std::move(parts)),
      pipeline_(parts_.clock),
      job_records_(pipeline_, parts_.spec),
      worker_records_(pipeline_, parts_.spec),
      elastic_records_(pipeline_, parts_.agent, parts_.spec, parts_.has_fifo),
      account_(parts_.clock, parts_.job_start, parts_.spec.max_nodes > 1,
               parts_.spec.goodput != spec::Goodput::Off) {
  elastic_records_.look_by(parts_.clock);
}

Status RunTelemetry::attach_event_handler() {
  const auto& name = parts_.spec.event_log_handler;
  const auto write = [&console = parts_.console](std::string_view line) {
    console.write(logs::Console::Stream::Err, line);
  };
  const auto handler = telemetry::events::find_handler(name, write);
  if (!handler) return std::unexpected(handler.error());
  if (name != "null") telemetry::events::attach(pipeline_, *handler);
  return {};
}

Started<void> RunTelemetry::open_sinks() {
  auto metrics = RunMetrics::make(
      parts_.spec, {parts_.loop, parts_.clock, pipeline_, parts_.console, parts_.containment,
                    parts_.streams, parts_.channel, worker_records_, parts_.store, parts_.group});
  if (!metrics) return std::unexpected(metrics.error());
  metrics_ = std::move(*metrics);
  if (metrics_) nodes_ = std::make_unique<NodeSeries>(metrics_->host().registry());
  return {};
}

void RunTelemetry::watch_goodput() {
  if (parts_.spec.goodput == spec::Goodput::Off || !metrics_) return;
  GoodputMonitor::Parts monitor{.clock = parts_.clock,
                                .account = account_,
                                .host = metrics_->host(),
                                .machine = &metrics_->machine(),
                                .scheduled = scheduled_since(workers::own_environment())};
  monitor_ = std::make_unique<GoodputMonitor>(std::move(monitor), parts_.job_start);
}

void RunTelemetry::tell_process() {
  using Kind = telemetry::Record::Kind;
  const auto carried = [](Kind kind) { return telemetry::process_pipeline().carries(kind); };
  // A route for nothing would have every record built, also those that no sink of the job wants.
  if (!std::ranges::any_of(std::array{Kind::Event, Kind::Sample, Kind::Window, Kind::SpanEnd},
                           carried)) {
    return;
  }
  pipeline_.route({}, std::make_shared<ToProcessPipeline>());
}

std::vector<Observer*> RunTelemetry::observers() {
  // First, so that all who ask the account afterwards find the same fact in it.
  std::vector<Observer*> all{&account_};
  if (monitor_) all.push_back(monitor_.get());  // looks at what the account has heard
  if (nodes_) all.push_back(nodes_.get());
  for (Observer* one :
       std::initializer_list<Observer*>{&elastic_records_, &job_records_, &worker_records_}) {
    all.push_back(one);
  }
  if (metrics_) all.push_back(&metrics_->observer());
  return all;
}

void RunTelemetry::write_journal(const std::shared_ptr<exporter::JsonLines>& journal) {
  pipeline_.route({}, journal);
  if (metrics_) metrics_->watch_journal(journal);
}

void RunTelemetry::sum_up(JobResult& result) {
  account_.tell(result);
  job_records_.summary(result.goodput);
}

std::vector<exporter::SinkAccount> RunTelemetry::end_metrics() {
  return metrics_ ? metrics_->end() : std::vector<exporter::SinkAccount>();
}

}  // namespace elastrun::agent
