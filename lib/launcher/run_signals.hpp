// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/run_files.hpp"
#include "agent/loop/agent.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/telemetry/run_telemetry.hpp"
#include "core/clock.hpp"
#include "logs/status_line.hpp"
#include "logs/stream_factory.hpp"
#include "process/signals.hpp"
#include "workers/summons.hpp"

#include <map>
#include <memory>
#include <vector>

namespace elastrun::agent {

/// The signals of a run, from its making on: those that end the job are judged and told, those of
/// --forward-signals go on to the workers. What guardian or agent alone hears goes on, what every
/// process of the job got does not. SIGUSR1 and SIGUSR2 end nothing even if they are not to be
/// forwarded, unless they are handled.
class RunSignals {
 public:
  /// Listens from now on. Borrows all.
  RunSignals(RunContext& run, Agent& agent, RunTelemetry& telemetry, RunFiles& files,
             logs::StreamFactory& streams, logs::StatusLine& line);

  /// Ends the run as SIGTERM does when one of these can be read from: the process that started it
  /// has gone.
  void end_with(const std::vector<int>& descriptors);
  /// What comes from now on changes nothing.
  void ignore_rest();

 private:
  void listen();
  void heard(const process::SignalEvent& event, process::Demand demand);
  void listen_to_passing();
  void watch_around();
  void heard_passing(const process::SignalEvent& event);
  void await(int signal);
  void decide(int signal);
  void pass_on(int signal) const;

  RunContext& run_;
  Agent& agent_;
  RunTelemetry& telemetry_;
  RunFiles& files_;
  logs::StreamFactory& streams_;
  logs::StatusLine& line_;
  const process::SignalList handled_;
  process::SignalEscalation escalation_;
  workers::PassingSignals passing_;
  std::map<int, std::unique_ptr<Alarm>> alarms_;  // of the forwarded ones
  std::unique_ptr<process::SignalSource> source_, passing_source_, resizes_;
  std::unique_ptr<process::DeathWatch> guardian_watch_;
  std::vector<std::unique_ptr<process::DeathWatch>> callers_;
  bool callers_gone_ = false;
};

}  // namespace elastrun::agent
