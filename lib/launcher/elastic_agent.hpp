// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "launcher/rendezvous_setup.hpp"
#include "process/guardian.hpp"
#include "rendezvous/session/handler.hpp"
#include "spec/job_spec.hpp"
#include "workers/diagnostics.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::agent {

/// Where the output of the workers goes, and what of it the console shows: torchelastic's
/// LogsSpecs.
struct LogsSpecs {
  std::string log_dir{};  // empty: a temporary one, kept only if it holds something of use
  spec::StdMap redirects{}, tee{};
  std::vector<int> local_ranks_filter{};  // empty: all
  std::string prefix_template{};          // of tee'd lines; empty: [ROLELOCAL_RANK]:
};

/// What the workers of one node are, and how the node finds the others: torchelastic's WorkerSpec,
/// with its defaults. Only entrypoint and rdzv_handler have none.
struct WorkerSpec {
  std::string role = "default";
  int local_world_size = 1;
  std::string entrypoint{};         // a program: a path, or a name that is looked up in PATH
  std::vector<std::string> args{};  // `$local_rank` in them is filled in
  rendezvous::Handler rdzv_handler{};
  int max_restarts = 3;
  /// Deaths are seen at once; this is how often a handler of your own is asked for waiting nodes,
  /// and twice the time in which failed workers may still say why.
  Duration monitor_interval = std::chrono::milliseconds(100);
  /// Fixes where the workers of this node meet, over what the rounds announce and what a handler of
  /// your own says. At another port than theirs, you serve the store (with etcd, worker 0 does).
  std::string master_addr{};
  std::uint16_t master_port = 0;
  std::string local_addr{};                  // by which other nodes reach this one
  std::string event_log_handler = "null";    // as telemetry::events::register_handler
  std::map<std::string, std::string> env{};  // added to the workers' environment
  std::vector<int> inherited_fds{};  // descriptors of ours that the workers have, too, above 2
  LogsSpecs logs{};
  std::optional<std::vector<std::string>> duplicate_stdout_filters{}, duplicate_stderr_filters{};
  spec::NumaBinding numa_binding = spec::NumaBinding::None;
  bool virtual_local_rank = false;
  Duration exit_barrier_timeout = std::chrono::seconds(300);
  Duration shutdown_timeout = std::chrono::seconds(30);
  std::vector<std::string> signals_to_handle = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"};
  spec::JobSpec options{};  // all else that a command line could say: --http, --metrics, ...
};

/// What the options of a job say about its rendezvous, without back end and id.
rendezvous::RendezvousParameters parameters_of(const spec::JobSpec& job);
/// Has the job meet by a back end of these parameters, its workers at `master` as far as that is
/// fixed. `parameters` are not checked: a handler of the caller's own needs no name.
void meet_by(const rendezvous::RendezvousParameters& parameters,
             const rendezvous::BootstrapStoreInfo& master, spec::JobSpec& job);

/// The same job as a command line would give it. Fails with Usage and a sentence that names the
/// field.
Result<spec::JobSpec> job_of(const WorkerSpec& spec);

/// torchelastic's states of a worker group.
enum class WorkerState { Unknown, Init, Healthy, Unhealthy, Stopped, Succeeded, Failed };
/// "UNKNOWN", "INIT", ...
std::string_view state_name(WorkerState state);

/// How a run of the workers of this node ended: torchelastic's RunResult.
struct RunResult {
  WorkerState state = WorkerState::Unknown;
  std::map<int, int> return_values;          // exit codes by global rank: of those that succeeded
  std::map<int, workers::Failure> failures;  // by global rank
  bool is_failed() const { return state == WorkerState::Failed; }
};

/// Fails where torchelastic's agent raises: a signal (Cancelled), workers that could not be started
/// (Spawn), a rendezvous that was closed, timed out or lost (Closed, Timeout, Rendezvous). Pure.
Result<RunResult> run_result(const JobResult& result);

/// The agent of one node for a launcher of your own (torchelastic's LocalElasticAgent): starts the
/// workers that the spec describes, watches them, starts them again, and ends all of them. The
/// program elastrun runs its jobs by the same code.
///
/// Metrics go to the handlers of telemetry::metrics::configure, events to the one registered under
/// the spec's event_log_handler.
///
/// A run takes the process for itself: its signals to handle, SIGCHLD and orphans; so one run at a
/// time, and other threads must have those signals blocked. Afterwards they are as before. Children
/// that the process had before are left alone; what it starts meanwhile by other means ends with
/// the job.
class LocalElasticAgent {
 public:
  /// `guardian`: what guardian::split() gave at the very start of main, so that nothing is left
  /// even when the launcher is killed. Borrowed; without one a SIGKILL of the launcher still ends
  /// the workers, but not what left their sessions.
  explicit LocalElasticAgent(const WorkerSpec& spec, guardian::Agent* guardian = nullptr);
  /// The agent of a job as a command line gives it, of which workers have `inherited_fds`, too.
  LocalElasticAgent(Result<spec::JobSpec> job, OwnRendezvous own, std::vector<int> inherited_fds,
                    guardian::Agent* guardian)
      : job_(std::move(job)),
        own_(std::move(own)),
        inherited_fds_(std::move(inherited_fds)),
        guardian_(guardian) {}

  /// Runs the job to its end on this thread. Failed workers are a result (`is_failed`); errors are
  /// those of `run_result`, and Usage or Io for a spec or a machine with which nothing can start.
  Result<RunResult> run();

  /// A run ends as by SIGTERM when one of these can be read from: a pidfd, or a connection of which
  /// the other end has gone. Borrowed.
  void end_with(std::vector<int> descriptors) { ends_with_ = std::move(descriptors); }

  /// All about the last run, also one that ended with an error: for verdict_text, summary_text and
  /// reports. None before one ran.
  const std::optional<JobResult>& job_result() const { return job_result_; }

 private:
  const Result<spec::JobSpec> job_;
  const OwnRendezvous own_;
  const std::vector<int> inherited_fds_;
  guardian::Agent* guardian_;
  std::vector<int> ends_with_;
  std::optional<JobResult> job_result_;
};

}  // namespace elastrun::agent
