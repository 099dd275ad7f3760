// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "core/error.hpp"
#include "workers/failure.hpp"

#include <map>
#include <string_view>

namespace elastrun::agent {

/// torchelastic's states of a worker group.
enum class WorkerState { Unknown, Init, Healthy, Unhealthy, Stopped, Succeeded, Failed };
/// "UNKNOWN", "INIT", ...
std::string_view state_name(WorkerState state);
/// Healthy or unhealthy.
bool is_running(WorkerState state);

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

}  // namespace elastrun::agent
