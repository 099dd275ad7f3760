// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/process_table.hpp"

#include <string>

namespace elastrun::process {

/// The part that a process plays for the one below it.
enum class Wrapper {
  None,   // does the work itself: a trainer
  Shell,  // waits for what it has started, and goes on afterwards
  Relay,  // passes a signal on to its child and to its whole process group: timeout(1)
};

/// Told by the program that it runs (/proc/PID/exe), because the name of a process that runs a
/// script is the script's; by that name where the program cannot be read, or is many programs in
/// one. Programs such as env(1) and nice(1) become the one below them and need no rule. Others that
/// leave SIGTERM to the one below, as unshare(1) with --fork, wait for it and block or ignore it.
Wrapper wrapper_of(const ProcessEntry& process, const std::string& proc = "/proc");

/// True if a process waits for a child, as a wrapper does, and SIGTERM means something to this one:
/// it has a handler for it.
bool leaves_to(const ProcessEntry& parent, const ProcessEntry& child,
               const std::string& proc = "/proc");

}  // namespace elastrun::process
