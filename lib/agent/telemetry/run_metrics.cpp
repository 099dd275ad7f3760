// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_metrics.hpp"

#include "core/log.hpp"
#include "system/machine_points.hpp"
#include "workers/environment.hpp"

#include <utility>

namespace elastrun::agent {

RunMetrics::RunMetrics(const spec::JobSpec& spec, const Parts& parts)
    : loop_(parts.loop),
      clock_(parts.clock),
      files_(parts.loop.get_executor()),
      programs_(process::make_posix_launcher(parts.loop, parts.clock)),
      host_(parts.clock, parts.pipeline, telemetry::process_registry(), spec.metrics_interval),
      own_(host_, parts.clock.now(), spec.max_restarts),
      machine_(parts.loop.get_executor(), parts.clock, parts.group),
      observations_({parts.streams, parts.channel, parts.records, parts.store}, host_) {
  const auto gather = [this](TelemetryHost::TakePoints take) {
    machine_.look([this, take = std::move(take)](const system::MachineSample& sample) {
      take(machine_.points_of(sample));
    });
  };
  host_.add_source(gather, system::machine_point_names());
}

Started<std::unique_ptr<RunMetrics>> RunMetrics::make(const spec::JobSpec& spec,
                                                      const Parts& parts) {
  if (!TelemetryHost::is_wanted(spec)) return nullptr;
  std::unique_ptr<RunMetrics> metrics(new RunMetrics(spec, parts));
  parts.containment.spare(
      [programs = metrics->programs_.get(), alive = metrics->lifetime_.token()] {
        return alive ? programs->children() : std::vector<pid_t>();
      });
  const MetricsSinks sinks({parts.loop, parts.clock, metrics->files_, *metrics->programs_,
                            parts.console, workers::own_environment()},
                           spec);
  for (const auto& choice : spec.metrics) {
    auto sink = sinks.make(choice);
    if (!sink) {
      using Reason = StartFailure::Reason;
      const bool wrong = sink.error().code == Code::Usage;
      return std::unexpected(
          StartFailure(sink.error(), wrong ? Reason::WrongOption : Reason::Conditions));
    }
    using By = TelemetryHost::By;
    metrics->host_.add(std::move(*sink), MetricsSinks::selectors_of(choice),
                       choice.routes.empty() ? By::Default : By::User);
  }
  return metrics;
}

const std::vector<exporter::SinkAccount>& RunMetrics::end() {
  if (std::exchange(ended_, true)) return accounts_;
  const auto delivered = std::make_shared<bool>(false);
  host_.finish([this, delivered, alive = lifetime_.token()] {
    *delivered = true;
    if (alive && ending_) loop_.stop();
  });
  if (!*delivered) {
    ending_ = true;
    const auto limit = clock_.make_alarm();
    loop_.restart();
    limit->arm(clock_.now() + kTimeLimit, [this] { loop_.stop(); });
    loop_.run();
    ending_ = false;
  }
  accounts_ = host_.accounts();
  for (const auto& sink : accounts_) {
    if (sink.lost == 0) {
      log::info("metrics", "{}: {} delivered", sink.sink, sink.delivered);
    } else {
      log::warning("metrics", "{}: {} delivered, {} lost: {}", sink.sink, sink.delivered, sink.lost,
                   sink.trouble.empty() ? "it is too slow" : sink.trouble);
    }
  }
  return accounts_;
}

}  // namespace elastrun::agent
