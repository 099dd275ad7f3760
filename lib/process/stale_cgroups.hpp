// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "process/cgroup.hpp"

#include <string>
#include <vector>

/// The cgroups of agents that were killed at the same moment as their guardians, which would have
/// emptied them. The next agent that makes one in the same place looks for them.
///
/// Each name says whose the cgroup is, but a process that /proc does not show need not be dead
/// (hidepid, no descriptor left, another time namespace). So the agent holds flock(2) on the
/// directory as long as it lives, which the kernel ends with it, and after it the guardian while it
/// sweeps: only a cgroup of which the lock is free is stale.
namespace elastrun::process {

/// A locked cgroup of this process below `parent`, for which `number` is new. Where it cannot be
/// locked, its name keeps it from ever being taken for stale. Fails as Cgroup::make.
Result<Cgroup> make_own_cgroup(const std::string& parent, int number);

struct EndedCgroups {
  std::vector<std::string> killed;  // names of those whose processes have been ended
  std::vector<std::string> stuck;   // in which some still are
};

/// Kills what is in stale cgroups below `parent`, and removes them; waits up to `limit` for all
/// together, and 50 ms. Leaves alone those of other users and other pid namespaces, and all where
/// locks cannot be had.
EndedCgroups end_stale_cgroups(const std::string& parent, Duration limit);

}  // namespace elastrun::process
