// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_metrics.hpp"

#include "agent/telemetry/agent_metrics.hpp"
#include "core/log.hpp"
#include "system/machine_points.hpp"
#include "workers/environment.hpp"

#include <utility>

namespace elastrun::agent {
namespace {

using telemetry::Kind;
using Report = telemetry::Registry::Report;

double number(std::uint64_t whole) {
  return static_cast<double>(whole);
}

}  // namespace

RunObservations::RunObservations(const Parts& parts, TelemetryHost& host)
    : parts_(parts), host_(host) {
  observe_store();
  observe_output();
  observe_channel();
  observe_telemetry();
}

/// Of two runs in one process, which cannot be, or a launcher that has such names itself, the first
/// one is shown.
void RunObservations::observe(Kind kind, telemetry::Spec spec,
                              telemetry::Registry::Observer observer) {
  spec.scope = AgentMetrics::kScope;
  auto made = host_.registry().observe(kind, std::move(spec), std::move(observer));
  if (!made) return log::info("metrics", "{}", made.error().text);
  all_.push_back(std::move(*made));
}

void RunObservations::observe_store() {
  const auto& store = parts_.store;
  observe(Kind::Counter,
          {.name = "elastrun.store.requests",
           .unit = "{request}",
           .help = "Requests to the workers' store, where this node serves it."},
          [&store](const Report& report) { report(number(store.requests()), {}); });
  observe(Kind::Gauge,
          {.name = "elastrun.store.connections",
           .unit = "{connection}",
           .help = "Open connections to the workers' store of this node."},
          [&store](const Report& report) { report(number(store.visitors()), {}); });
}

void RunObservations::observe_output() {
  observe(Kind::Counter,
          {.name = "elastrun.worker.output",
           .unit = "By",
           .help = "What the workers have written to stdout and stderr.",
           .label_keys = {"stream"}},
          [&streams = parts_.streams](const Report& report) {
            report(number(streams.bytes(logs::Console::Stream::Out)), {"stdout"});
            report(number(streams.bytes(logs::Console::Stream::Err)), {"stderr"});
          });
}

void RunObservations::observe_channel() {
  observe(Kind::Counter,
          {.name = "elastrun.channel.messages",
           .unit = "{message}",
           .help = "What workers have reported over their channel."},
          [&channel = parts_.channel](const Report& report) {
            report(number(channel.statistics().messages), {});
          });
  observe(Kind::Counter,
          {.name = "elastrun.channel.dropped",
           .unit = "{message}",
           .help = "Reports of workers that were refused, or were too many to be taken further.",
           .label_keys = {"reason"}},
          [parts = parts_](const Report& report) {
            const auto& records = parts.records.statistics();
            report(number(parts.channel.statistics().refused + records.refused), {"refused"});
            report(number(parts.channel.statistics().strange), {"stranger"});
            report(number(records.suppressed), {"suppressed"});
            report(number(records.overflowed), {"overflowed"});
            report(number(parts.channel.statistics().not_told), {"worker"});
          });
}

void RunObservations::observe_telemetry() {
  observe(
      Kind::Counter,
      {.name = "elastrun.telemetry.dropped",
       .unit = "{record}",
       .help = "Records that a sink of --metrics or the journal has lost, or the pipeline before "
               "all sinks.",
       .label_keys = {"sink"}},
      [this, &host = host_](const Report& report) {
        report(number(host.pipeline().dropped()), {"pipeline"});
        report(number(host.refused_samples()), {"series"});
        if (journal_) report(number(journal_->lost()), {"journal"});
        for (const auto& one : host.accounts()) {
          // An account counts as lost what has not been delivered yet, and what waits may still be.
          report(number(one.lost - one.waiting), {one.sink});
        }
      });
  observe(Kind::Gauge,
          {.name = "elastrun.telemetry.queue.length",
           .unit = "{record}",
           .help = "Records that wait for a sink of --metrics.",
           .label_keys = {"sink"}},
          [&host = host_](const Report& report) {
            for (const auto& one : host.accounts()) report(number(one.waiting), {one.sink});
          });
}

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
  for (const auto& [pattern, names] : spec.aggregations) override_views(pattern, names);
}

/// Of our own instruments; workers do the same for their Stats, where `*` matches dots, too.
void RunMetrics::override_views(const std::string& pattern, const std::vector<std::string>& names) {
  if (!pattern.starts_with("elastrun.")) return;
  telemetry::View view;
  for (const auto& name : names) {
    if (const auto one = telemetry::aggregation_named(name)) view.aggregations.add(*one);
  }
  std::string wide;
  for (const char c : pattern) wide.append(c == '*' ? 2 : 1, c);
  if (!view.aggregations.empty()) host_.registry().override_views(std::move(wide), {view});
}

Started<std::unique_ptr<RunMetrics>> RunMetrics::make(const spec::JobSpec& spec,
                                                      const Parts& parts) {
  if (!TelemetryHost::is_wanted(spec)) return nullptr;
  std::unique_ptr<RunMetrics> metrics(new RunMetrics(spec, parts));
  // Programs of sinks outlive a group of workers, and are not among its leftovers.
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
    // A loop that was stopped runs nothing until then (io_context::restart()).
    loop_.restart();
    // A collector that does not answer must not keep the job from ending.
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
