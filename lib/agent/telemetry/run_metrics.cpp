// SPDX-License-Identifier: Apache-2.0

#include "agent/telemetry/run_metrics.hpp"

#include "agent/telemetry/job_records.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "system/machine_points.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <utility>

namespace elastrun::agent {
namespace {

std::string cause_name(const rendezvous::Restart& order) {
  return order.attempt_spent ? "failure" : "membership";
}

}  // namespace

telemetry::Spec AgentMetrics::spec(std::string name, std::string unit, std::string help,
                                   std::vector<std::string> label_keys) const {
  return {.name = std::move(name),
          .unit = std::move(unit),
          .help = std::move(help),
          .scope = std::string(kScope),
          .label_keys = std::move(label_keys)};
}

AgentMetrics::AgentMetrics(TelemetryHost& host, TimePoint start, int max_restarts)
    : host_(host),
      start_(start),
      max_restarts_(max_restarts),
      rendezvous_(spec("elastrun.rendezvous.duration", "s", "Waiting for a round of nodes."),
                  host.registry()),
      starting_(spec("elastrun.worker.start.duration", "s", "Starting the workers of this node."),
                host.registry()),
      stopping_(spec("elastrun.worker.stop.duration", "s",
                     "From the order to stop until nothing of the workers was left."),
                host.registry()),
      restarting_(spec("elastrun.restart.duration", "s",
                       "From the order to restart until the new workers were started."),
                  host.registry()),
      startup_(spec("elastrun.startup.duration", "s",
                    "From the start of the launcher until the first workers were started."),
               host.registry()),
      restarts_left_(spec("elastrun.restarts.remaining", "{restart}", "Restarts that are left."),
                     host.registry()),
      flakiness_(spec("elastrun.run.flakiness", "1", "Share of the restarts that a run has spent."),
                 host.registry()),
      phases_(spec("elastrun.agent.phase", "", "1 for the phase that the agent is in.", {"phase"}),
              host.registry()),
      restarts_(
          spec("elastrun.restart.count", "{restart}",
               "Restarts of the workers, after a failure or a change of the nodes.", {"cause"}),
          host.registry()),
      exits_(spec("elastrun.worker.exits", "{exit}", "Workers that have ended.",
                  {"code", "signal", "stopped"}),
             host.registry()),
      runs_(spec("elastrun.run.count", "{run}", "Runs that have ended.", {"outcome", "retried"}),
            host.registry()) {
  restarts_left_.set(max_restarts);
}

void AgentMetrics::span(std::string name, TimePoint end, Duration length,
                        std::vector<telemetry::Attribute> attributes) {
  auto& pipeline = host_.pipeline();
  if (!pipeline.carries(telemetry::Record::Kind::SpanEnd)) return;
  telemetry::Record record;
  record.kind = telemetry::Record::Kind::SpanEnd;
  const auto now = pipeline.clock().now();
  // Of the end, not of this call: workers are told of when all of their group are gone.
  record.stamp = {end, pipeline.clock().wall() - (now - end)};
  record.scope = kScope;
  record.name = std::move(name);
  record.attributes = std::move(attributes);
  record.attributes.emplace_back("duration_ns", std::int64_t{length.count()});
  pipeline.emit(std::move(record));
}

void AgentMetrics::on(const moment::PhaseChanged& seen) {
  // A gauge keeps its value, so without this the phase that is over would be told as well.
  if (phase_) phases_.with({std::string(phase_name(*phase_))}).set(0);
  phases_.with({std::string(phase_name(seen.phase))}).set(1);
  phase_ = seen.phase;
  host_.recorded();
}

void AgentMetrics::on(const moment::RoundReady& seen) {
  const auto& self = seen.round.members[static_cast<std::size_t>(seen.round.group_rank)];
  host_.round_began(seen.round.rank_base, self.local_world_size);
  rendezvous_.add(to_seconds(seen.waited));
  restarts_left_.set(seen.round.restarts_left);
  span("rendezvous", host_.pipeline().clock().now(), seen.waited, {{"round", seen.round.number}});
  host_.recorded();
}

void AgentMetrics::on(const moment::Started& seen) {
  const auto now = host_.pipeline().clock().now();
  starting_.add(to_seconds(seen.took));
  attempt_ = seen.round.attempt;
  span("start", now, seen.took, {{"round", seen.round.number}});
  // Of the first start alone: what a restart takes is another series.
  if (!std::exchange(has_started_, true)) startup_.set(to_seconds(now - start_));
  if (restart_began_) restarting_.add(to_seconds(now - *restart_began_));
  restart_began_.reset();
  group_began_ = now;
  host_.recorded();
}

void AgentMetrics::on(const moment::Restarting& seen) {
  restarts_.with({cause_name(seen.order)}).add();
  restart_began_ = host_.pipeline().clock().now();
  host_.recorded();
}

void AgentMetrics::on(const moment::Stopped& seen) {
  stopping_.add(to_seconds(seen.took));
  span("stop", host_.pipeline().clock().now(), seen.took);
  for (const auto& worker : seen.group) {
    // One that could not be ended has none, and is left behind.
    if (!worker.exit) continue;
    const auto& status = worker.exit->status;
    const bool exited = status.how == process::ExitStatus::How::Exited;
    exits_
        .with({exited ? fmt::to_string(status.number) : "",
               exited ? "" : process::signal_name(status.number),
               worker.stopped_by_us ? "true" : "false"})
        .add();
    // Of a group whose start failed started() was never told.
    if (!group_began_) continue;
    span("worker", worker.exit->at, worker.exit->at - *group_began_,
         {{"rank", std::int64_t{worker.rank}},
          {"pid", std::int64_t{worker.pid}},
          {"attempt", std::int64_t{attempt_}}});
  }
  group_began_.reset();
  host_.recorded();
}

void AgentMetrics::on(const moment::Ended& seen) {
  const int left = seen.result.restarts_left;
  // torchelastic's formula: + 1 keeps it defined where no restart is allowed.
  const double spent = 1 - static_cast<double>(left + 1) / (max_restarts_ + 1);
  flakiness_.set(seen.result.succeeded() ? spent : 1);
  restarts_left_.set(left);
  runs_
      .with({seen.result.succeeded() ? "success" : "failure",
             seen.result.restarts > 0 ? "true" : "false"})
      .add();
  span("job", host_.pipeline().clock().now(), host_.pipeline().clock().now() - start_,
       {{"ending", std::string(ending_name(seen.result.ending.kind))}});
  host_.recorded();
}

namespace {

using telemetry::Kind;
using Report = telemetry::Registry::Report;

double number(std::uint64_t whole) {
  return static_cast<double>(whole);
}

}  // namespace

void RunMetrics::observe_parts() {
  const auto& store = parts_.store;
  observations_.add(Kind::Counter,
                    {.name = "elastrun.store.requests",
                     .unit = "{request}",
                     .help = "Requests to the workers' store, where this node serves it."},
                    [&store](const Report& report) { report(number(store.requests()), {}); });
  observations_.add(Kind::Gauge,
                    {.name = "elastrun.store.connections",
                     .unit = "{connection}",
                     .help = "Open connections to the workers' store of this node."},
                    [&store](const Report& report) { report(number(store.visitors()), {}); });
  observations_.add(Kind::Counter,
                    {.name = "elastrun.worker.output",
                     .unit = "By",
                     .help = "What the workers have written to stdout and stderr.",
                     .label_keys = {"stream"}},
                    [&streams = parts_.streams](const Report& report) {
                      report(number(streams.bytes(logs::Console::Stream::Out)), {"stdout"});
                      report(number(streams.bytes(logs::Console::Stream::Err)), {"stderr"});
                    });
  observations_.add(Kind::Counter,
                    {.name = "elastrun.channel.messages",
                     .unit = "{message}",
                     .help = "What workers have reported over their channel."},
                    [&channel = parts_.channel](const Report& report) {
                      report(number(channel.statistics().messages), {});
                    });
  observations_.add(
      Kind::Counter,
      {.name = "elastrun.channel.dropped",
       .unit = "{message}",
       .help = "Reports of workers that were refused, or were too many to be taken further.",
       .label_keys = {"reason"}},
      [this](const Report& report) {
        const auto& records = records_.statistics();
        const auto& channel = parts_.channel.statistics();
        report(number(channel.refused + records.refused), {"refused"});
        report(number(channel.strange), {"stranger"});
        report(number(records.suppressed), {"suppressed"});
        report(number(records.overflowed), {"overflowed"});
        report(number(channel.not_told), {"worker"});
      });
}

void RunMetrics::observe_telemetry() {
  observations_.add(
      Kind::Counter,
      {.name = "elastrun.telemetry.dropped",
       .unit = "{record}",
       .help = "Records that a sink of --metrics or the journal has lost, or the pipeline before "
               "all sinks.",
       .label_keys = {"sink"}},
      [this](const Report& report) {
        report(number(host_.pipeline().dropped()), {"pipeline"});
        report(number(host_.registry().refused_samples()), {"series"});
        if (journal_) report(number(journal_->lost()), {"journal"});
        for (const auto& one : host_.accounts()) {
          // An account counts as lost what has not been delivered yet, and what waits may still be.
          report(number(one.lost - one.waiting), {one.sink});
        }
      });
  observations_.add(Kind::Gauge,
                    {.name = "elastrun.telemetry.queue.length",
                     .unit = "{record}",
                     .help = "Records that wait for a sink of --metrics.",
                     .label_keys = {"sink"}},
                    [this](const Report& report) {
                      for (const auto& one : host_.accounts())
                        report(number(one.waiting), {one.sink});
                    });
}

RunMetrics::RunMetrics(const RunParts& parts, telemetry::Pipeline& pipeline,
                       const WorkerRecords& records)
    : parts_(parts),
      records_(records),
      files_(parts.run.loop.get_executor()),
      programs_(parts.run.loop, parts.run.clock),
      host_(parts.run.clock, pipeline, telemetry::process_registry(),
            parts.run.spec.metrics_interval),
      own_(host_, parts.run.clock.now(), parts.run.spec.max_restarts),
      machine_(parts.run) {
  observe_parts();
  observe_telemetry();
  const auto gather = [this](TelemetryHost::TakePoints take) {
    machine_.look([this, take = std::move(take)](const system::MachineSample& sample) {
      take(machine_.points_of(sample));
    });
  };
  host_.add_source(gather, system::machine_point_names());
  for (const auto& [pattern, names] : parts.run.spec.aggregations) choose(pattern, names);
}

/// Of our own instruments; workers do the same for their Stats, where `*` matches dots, too.
void RunMetrics::choose(const std::string& pattern, const std::vector<std::string>& names) {
  using telemetry::Aggregation;
  if (!pattern.starts_with("elastrun.")) return;
  std::set<Aggregation> chosen;
  for (const auto& name : names) {
    const auto found = std::ranges::find(worker::kAggregations, name);
    const auto one = static_cast<Aggregation>(found - worker::kAggregations.begin());
    // That is for Stats of workers.
    if (one < Aggregation::Histogram) chosen.insert(one);
  }
  std::string wide;
  for (const char c : pattern) wide.append(c == '*' ? 2 : 1, c);
  if (!chosen.empty()) host_.registry().override_aggregations(std::move(wide), std::move(chosen));
}

Started<std::unique_ptr<RunMetrics>> RunMetrics::make(const RunParts& parts,
                                                      telemetry::Pipeline& pipeline,
                                                      const WorkerRecords& records) {
  const auto& spec = parts.run.spec;
  if (!TelemetryHost::is_wanted(spec)) return nullptr;
  std::unique_ptr<RunMetrics> metrics(new RunMetrics(parts, pipeline, records));
  // Programs of sinks outlive a group of workers, and are not among its leftovers.
  parts.containment.spare([programs = &metrics->programs_, alive = metrics->lifetime_.token()] {
    return alive ? programs->children() : std::vector<pid_t>();
  });
  const MetricsSinks sinks({parts.run.loop, parts.run.clock, metrics->files_, metrics->programs_,
                            parts.run.console, parts.run.environment},
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
    if (alive && ending_) parts_.run.loop.stop();
  });
  if (!*delivered) {
    ending_ = true;
    const auto limit = parts_.run.clock.make_alarm();
    // A loop that was stopped runs nothing until then (io_context::restart()).
    parts_.run.loop.restart();
    // A collector that does not answer must not keep the job from ending.
    limit->arm(parts_.run.clock.now() + kTimeLimit, [this] { parts_.run.loop.stop(); });
    parts_.run.loop.run();
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
