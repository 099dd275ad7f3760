// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "core/error.hpp"
#include "launcher/rendezvous_setup.hpp"
#include "launcher/worker_spec.hpp"
#include "process/guardian.hpp"
#include "workers/failure.hpp"

#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace elastrun::agent {

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
