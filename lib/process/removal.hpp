// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <string>
#include <vector>

namespace elastrun::process {

/// How long a removal goes on at most, all paths together: their file system may never answer.
constexpr Duration kRemovalBound = std::chrono::seconds(5);
/// And once somebody wants it to end: enough where the file system does answer.
constexpr Duration kRemovalAfterSignal = std::chrono::seconds(1);

/// Removes one path with all below; symbolic links are not followed.
void remove_path(const std::string& path);

/// Removes the paths in their order, each with all below; those that may still be there when it
/// gave up. What cannot be removed counts as removed, as if somebody else had tidied up.
///
/// A child does it and is killed at the end, because a process that waits for a file system may be
/// beyond all signals, and would hold up whoever waits for us; it has no descriptor of ours. Waits
/// kRemovalBound at most; SIGHUP, SIGINT, SIGQUIT and SIGTERM, also of before, make that
/// kRemovalAfterSignal and are taken. These four and SIGCHLD are blocked, and there is no thread.
std::vector<std::string> remove_within_bound(const std::vector<std::string>& paths,
                                             void (*remove)(const std::string&) = remove_path);

}  // namespace elastrun::process
