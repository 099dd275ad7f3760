// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <string>
#include <vector>

namespace elastrun::process {

/// How long a removal goes on at most, all paths together: their file system may never answer.
constexpr Duration kRemovalBound = std::chrono::seconds(5);
/// And once an end is wanted: enough where the file system does answer.
constexpr Duration kRemovalAfterSignal = std::chrono::seconds(1);

/// Removes one path with all below; symbolic links are not followed.
void remove_path(const std::string& path);

/// Removes the paths in their order, each with all below; those that may still be there when it
/// gave up. What cannot be removed counts as removed, as if it had been tidied up elsewhere.
///
/// A child does it (do_in_child()), which has no descriptor of ours. Waits kRemovalBound at most,
/// kRemovalAfterSignal once a signal has come.
std::vector<std::string> remove_within_bound(const std::vector<std::string>& paths,
                                             void (*remove)(const std::string&) = remove_path);

}  // namespace elastrun::process
