// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/run_files.hpp"
#include "agent/loop/agent.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/telemetry/run_telemetry.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"
#include "logs/console.hpp"
#include "logs/stream_factory.hpp"
#include "process/signals.hpp"
#include "workers/summons.hpp"

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
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

/// What asks a job to save and end besides signals and elastrunctl: a file that appears
/// (--preempt-file), and the end that Slurm has told for the job's allocation.
class PreemptionSources {
 public:
  /// The time to save in before an end that is known: twice what a save has taken, at least
  /// kLeast; before any save is known kUnknown. At most --preempt-timeout, or kMost without it, and
  /// half of the time that was left at the start.
  static constexpr Duration kLeast = std::chrono::seconds(10), kUnknown = std::chrono::seconds(60),
                            kMost = std::chrono::minutes(5);

  /// Does nothing for a job that has no preemption options. `end`: SLURM_JOB_END_TIME; empty: none.
  PreemptionSources(RunContext& run, const std::string& end);
  ~PreemptionSources() { lifetime_.end(); }

  /// A save has taken so long.
  void save_takes(Duration time);

 private:
  void watch_file();
  void await_event();
  void look();
  void arm();

  RunContext& run_;
  const std::string file_;
  const Duration timeout_;
  std::optional<TimePoint> end_;
  Duration most_ = kMost, margin_ = kUnknown;
  std::unique_ptr<Alarm> alarm_, again_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> events_;
  std::array<char, 4096> buffer_{};
  bool is_old_ = false;   // it was there before the job, and could not be removed
  bool is_gone_ = false;  // its folder
  Lifetime lifetime_;
};

/// How long before the end that a scheduler has told a job begins to save: at most `most`. Pure.
Duration preemption_margin(std::optional<Duration> save, Duration most);

}  // namespace elastrun::agent
