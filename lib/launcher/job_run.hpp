// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/run_files.hpp"
#include "agent/hang/hang_services.hpp"
#include "agent/loop/agent.hpp"
#include "agent/loop/saving.hpp"
#include "agent/round/shared_pages.hpp"
#include "agent/round/worker_channel.hpp"
#include "agent/round/worker_plans.hpp"
#include "agent/telemetry/run_telemetry.hpp"
#include "agent/web/web_services.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "files/blocking_calls.hpp"
#include "launcher/preemption_sources.hpp"
#include "launcher/rendezvous_setup.hpp"
#include "launcher/restart_check.hpp"
#include "launcher/restart_memory_file.hpp"
#include "launcher/run_signals.hpp"
#include "launcher/status/run_status.hpp"
#include "launcher/workers/binding.hpp"
#include "launcher/workers/fork_serving.hpp"
#include "launcher/workers/worker_messages.hpp"
#include "logs/agent_log.hpp"
#include "process/descriptor_limit.hpp"
#include "spec/job_spec.hpp"
#include "system/oom_kills.hpp"

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// What the restart policy and a preemption need on this node, beside the agent: how far the
/// workers are, the ledger's file, the check before a restart, and what asks the job to save and
/// end.
class RestartParts {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    const spec::JobSpec& spec;
    SharedPages& pages;
    files::BlockingCalls& thread;
    std::function<void(rendezvous::Report)> report;
    RestartCheck::Needs needs;  // of the store, before each restart
  };
  explicit RestartParts(Parts parts);

  std::array<Observer*, 2> observers() { return {&saving_, &memory_}; }
  Saving& saving() { return saving_; }
  /// Empty: the policy does not ask for it.
  std::function<void(RestartCheck::Then)> check();
  /// From now on, until `end`, a file or the end of a Slurm job may call `preempt`.
  void begin(PreemptionSources::Preempt preempt);
  void end() { sources_.reset(); }

 private:
  const Parts parts_;
  Saving saving_;
  RestartMemoryFile memory_;
  std::optional<PreemptionSources> sources_;
  std::optional<RestartCheck> check_;
};

/// What an earlier start has left in --restart-memory; null: nothing. Before the loop, for a
/// limited time.
Result<std::shared_ptr<const rendezvous::RestartMemory>> read_restart_memory(
    const spec::JobSpec& spec, WallTime now);

/// The run of one job on this node with everything it takes, each part of which borrows those
/// above it. The programs and LocalElasticAgent share it; one at a time in a process, because it
/// takes signals, children and console for itself.
class JobRun {
 public:
  /// Makes them all; starts nothing. Fails with Usage, Io, Store or Rendezvous.
  static Started<std::unique_ptr<JobRun>> make(const spec::JobSpec& spec, guardian::Agent& guardian,
                                               OwnRendezvous own = {});

  /// Before run(), of which the handlers of this process, if it has any by now, then hear, too:
  /// those of telemetry::metrics::configure, and its routes.
  void tell_process() { telemetry_->tell_process(); }
  /// Before run(), which then ends as by SIGTERM when one of these can be read from.
  void end_with(const std::vector<int>& descriptors);
  /// Runs the job to its end, and removes what was only temporary.
  JobResult run();
  /// Signals that come from now on change nothing any more: for a program that only has to say how
  /// the job ended, and with which exit code.
  void ignore_signals();
  logs::Console& console() { return console_; }
  /// The threads for files that may be on a file system that does not answer.
  files::BlockingCalls& lane(files::Lane lane) { return lanes_[lane]; }
  /// After run(): what the sinks of --metrics made of what they were given. Waits for them, for two
  /// seconds at most, so it comes after the verdict.
  std::vector<exporter::SinkAccount> end_metrics() { return telemetry_->end_metrics(); }
  /// After run(), and after everything that is written because of its result: waits, as LastWrites
  /// does, until files and console have it; then, as StoreDrain does, for workers of other nodes.
  void finish();
  /// Where the run's records come from: for sinks of the caller's own, before run().
  telemetry::Pipeline& pipeline() { return telemetry_->pipeline(); }
  /// Whether the directory of the run was not named by the user, who must be told of it.
  bool is_temporary() const { return layout_.is_temporary(); }

 private:
  JobRun(const spec::JobSpec& spec, guardian::Agent& guardian, logs::Layout layout);
  // The steps of make(), in order.
  Status meet(OwnRendezvous own);
  Status open_web();
  void make_agent();
  Status open_records();

  HangServices::Parts hang_parts();
  RunParts telemetry_parts();
  RunFiles::Parts file_parts();
  WorkerPlans::Parts plan_parts();
  Agent::Parts agent_parts();
  rendezvous::Session::OnPush before(rendezvous::Session::OnPush on_push);
  RunSignals::Parts signal_parts();
  const workers::Group* group() const { return agent_ ? agent_->group() : nullptr; }
  const workers::Worker* worker_of(pid_t process) const { return agent_->worker_of(process); }
  void explain(workers::Failure& failure);
  void signalled(const process::SignalEvent& event, process::Demand demand);
  /// `deadline` 0: what the job's options say.
  void preempt(const std::string& why, Duration deadline);
  std::string channel_path();
  process::KillResult sweep(Duration limit);
  void end_all(const JobResult& result);
  bool keeps_records() const;
  bool files_are_near() const;

  const spec::JobSpec& spec_;
  guardian::Agent& guardian_;
  process::DescriptorLimit descriptors_;
  boost::asio::io_context loop_{1};
  std::unique_ptr<Clock> clock_;
  TimePoint started_;
  files::Lanes lanes_;
  std::optional<logs::AgentLog> agent_log_;
  logs::Console console_;
  logs::Layout layout_;
  RunStatus status_;
  logs::StreamFactory streams_;
  std::unique_ptr<process::PosixLauncher> launcher_;
  process::Containment containment_;
  bool survivors_ = false;  // after all the time that SIGKILL may take
  WorkerChannel channel_;
  SharedPages pages_{spec_};
  system::OomKills oom_kills_;
  rendezvous::Node self_;
  RendezvousSetup place_;
  std::unique_ptr<HangServices> hang_;
  std::unique_ptr<RunTelemetry> telemetry_;
  Binding binding_;
  std::unique_ptr<ForkServing> forks_;  // null: all workers are started by exec
  std::unique_ptr<WebServices> web_;    // null: none asked for
  std::optional<RestartParts> restarts_;
  Observers observers_;
  std::optional<WorkerMessages> messages_;
  std::unique_ptr<RunFiles> files_;
  std::unique_ptr<WorkerPlans> plans_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<RunSignals> signals_;
  std::vector<std::unique_ptr<process::DeathWatch>> callers_;
  TimePoint store_needed_until_;
};

}  // namespace elastrun::agent
