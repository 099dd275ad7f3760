// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/process_table.hpp"

#include <string>

namespace elastrun::process {

/// Why a process does not run, in the words "stopped by a signal", "traced by gdb (pid 42)" or
/// "waiting for python3 (pid 43), stopped by a signal"; empty if it may. A worker may be a shell or
/// a debugger, and the trainer its child, in the same session. One that is stopped beside a process
/// that does not wait for it, an old loader or some helper, holds up nothing, and what is below
/// such a one is not looked at. Of a process that may have ended.
std::string held_by(pid_t pid);

/// True if a child of this process is stopped and has not been continued: one system call.
bool any_stopped_child();

}  // namespace elastrun::process
