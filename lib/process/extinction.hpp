// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/process_table.hpp"

#include <string>
#include <vector>

namespace elastrun::process {

/// What came of killing everything that descends from this process.
struct Extinction {
  int killed = 0;      // processes that got SIGKILL
  ProcessTable alive;  // those that live on: held by the kernel (state D), or not ours to signal
  /// "4711 (python, state D), 4712 (sh, state S)": for a message.
  std::string survivors() const;
};

/// Ends every descendant of this process with SIGKILL, but those in `spared` and below them, and
/// reaps what became its children; repeats until none is left, or `limit` has passed.
///
/// Costs one system call when there is nothing to do and nobody to spare. Otherwise blocks while
/// the victims die, normally a millisecond. Each victim is held by pidfd and checked by its start
/// time before it is signalled, so a reused pid cannot be hit. This process must be a subreaper;
/// otherwise those whose parents have ended are not found.
Extinction kill_descendants(const std::vector<pid_t>& spared, Duration limit);

/// Reaps children that have ended and are not in `known`: orphans that were adopted. Returns how
/// many. Cheap, and stops at the first one in `known` that has ended too.
int reap_adopted(const std::vector<pid_t>& known);

}  // namespace elastrun::process
