// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_observations.hpp"

#include "agent/telemetry/agent_metrics.hpp"
#include "core/log.hpp"

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

}  // namespace elastrun::agent
