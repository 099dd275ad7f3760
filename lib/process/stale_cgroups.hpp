// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <string>
#include <vector>

/// The cgroups of agents that were killed at the same moment as their guardians: nobody was left to
/// empty them. So each name says whose the cgroup is, and the next agent that makes one in the same
/// place looks.
namespace elastrun::process {

/// The name for a cgroup of this process. New, whoever had this pid before.
std::string cgroup_name(int number);

/// Kills what is in such cgroups below `parent`, waits for each up to `limit`, and removes them.
/// Leaves alone those of other users and other pid namespaces, and of agents that are alive. The
/// names of those that it found.
std::vector<std::string> end_stale_cgroups(const std::string& parent, Duration limit);

}  // namespace elastrun::process
