// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/process_table.hpp"

#include <string>

namespace elastrun::process {

/// Why a process does not run, in the words "stopped by a signal" or "traced by gdb (pid 42)";
/// empty if it may. As well where it waits for a child in its session of which that holds: a worker
/// may be a shell or a debugger, and the trainer its child. One that is stopped beside a process
/// that does not wait for it, an old loader or some helper, holds up nothing. `below`: its
/// descendants.
std::string held_by(const ProcessEntry& process, const ProcessTable& below);
/// Of a process that may have ended.
std::string held_by(pid_t pid);

/// Whether a child of this process has been stopped and not told to go on: one system call.
bool any_stopped_child();

}  // namespace elastrun::process
