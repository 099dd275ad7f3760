// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/agent_metrics.hpp"

#include "agent/telemetry/job_records.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/text.hpp"

#include <fmt/format.h>
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

void AgentMetrics::phase(Phase phase, TimePoint) {
  // A gauge keeps its value, so without this the phase that is over would be told as well.
  if (phase_) phases_.with({std::string(phase_name(*phase_))}).set(0);
  phases_.with({std::string(phase_name(phase))}).set(1);
  phase_ = phase;
  host_.recorded();
}

void AgentMetrics::round_ready(const rendezvous::Round& round, Duration waited) {
  const auto& self = round.members[static_cast<std::size_t>(round.group_rank)];
  host_.round_began(round.rank_base, self.local_world_size);
  rendezvous_.add(to_seconds(waited));
  restarts_left_.set(round.restarts_left);
  span("rendezvous", host_.pipeline().clock().now(), waited, {{"round", round.number}});
  host_.recorded();
}

void AgentMetrics::started(const rendezvous::Round& round, const std::vector<workers::Worker>&,
                           Duration took) {
  const auto now = host_.pipeline().clock().now();
  starting_.add(to_seconds(took));
  attempt_ = round.attempt;
  span("start", now, took, {{"round", round.number}});
  // Of the first start alone: what a restart takes is another series.
  if (!std::exchange(has_started_, true)) startup_.set(to_seconds(now - start_));
  if (restart_began_) restarting_.add(to_seconds(now - *restart_began_));
  restart_began_.reset();
  group_began_ = now;
  host_.recorded();
}

void AgentMetrics::restarting(const rendezvous::Restart& order) {
  restarts_.with({cause_name(order)}).add();
  restart_began_ = host_.pipeline().clock().now();
  host_.recorded();
}

void AgentMetrics::stopped(const std::vector<workers::Worker>& group, Duration took) {
  stopping_.add(to_seconds(took));
  span("stop", host_.pipeline().clock().now(), took);
  for (const auto& worker : group) {
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

void AgentMetrics::ended(const JobResult& result, const std::vector<workers::Worker>*) {
  const int left = result.restarts_left;
  // torchelastic's formula: + 1 keeps it defined where no restart is allowed.
  const double spent = 1 - static_cast<double>(left + 1) / (max_restarts_ + 1);
  flakiness_.set(result.succeeded() ? spent : 1);
  restarts_left_.set(left);
  runs_.with({result.succeeded() ? "success" : "failure", result.restarts > 0 ? "true" : "false"})
      .add();
  span("job", host_.pipeline().clock().now(), host_.pipeline().clock().now() - start_,
       {{"ending", std::string(ending_name(result.ending.kind))}});
  host_.recorded();
}

}  // namespace elastrun::agent
