// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/process_table.hpp"
#include "runs/run_registry.hpp"

#include <string>
#include <vector>

namespace elastrun::runs {

/// What a run has left of which agent and guardian were killed together: what had left the workers'
/// process groups, which the kernel kills (process::GroupDeathSignal), but not their sessions.
///
/// Of `table` those that are the run's for certain: in the session of a worker that the entry
/// names, not older than it, that session not led by a later process of the same number, and with
/// the mark of the run's agent (ELASTRUN_AGENT_ID) in their environment. A process that has cleared
/// its environment or made a new session is not certain, and not among them; nor is a job that a
/// worker has submitted to a scheduler, whose environment has the mark, too.
struct Leftovers {
  process::ProcessTable certain;
  /// More may be the run's: they hang in the kernel, so that their environment cannot be read now,
  /// or they are this process, its ancestors, or of its session.
  bool unsure = false;
};
Leftovers leftovers_of(const RunEntry& entry, const process::ProcessTable& table,
                       const std::string& proc = "/proc");

/// A run whose agent has gone without removing its entry, and what is left of it.
struct DeadRun {
  ListedRun run;
  process::ProcessTable left;
  bool unsure = false;  // as that of Leftovers
};
/// Those of this pid namespace that have left something for certain. Of the others the files are
/// removed, unless they are unsure: those are to be looked at again.
std::vector<DeadRun> list_dead_runs(const std::vector<std::string>& places);

/// Sends SIGKILL to all that dead runs have left, and waits for their ends `limit` at most. The
/// runs that had left something, each with what lives still; of the others the files are removed.
struct EndedRun {
  RunEntry entry;
  process::ProcessTable killed, alive;
};
std::vector<EndedRun> end_dead_runs(const std::vector<std::string>& places, Duration limit);

/// "4711 (timeout 9h train.py), 4712 (python)": no more than a person reads.
std::string names_of(const process::ProcessTable& table);

}  // namespace elastrun::runs
