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

/// The processes of a job on this node, the workers and all below them: Containment has the real
/// ones, tests play others. Questions about one process are put to /proc.
class JobProcesses {
 public:
  virtual ~JobProcesses() = default;
  /// All live processes of the job, the workers included.
  virtual ProcessTable processes() const = 0;
  /// Live processes that the sweep would kill, which ended workers have left in their groups or
  /// elsewhere: nothing is done to them.
  virtual ProcessTable leftovers() const = 0;
  /// Kills what workers have left, and waits so long at most: only when they are not to live on.
  virtual KillResult sweep(Duration limit) = 0;
  /// Sends a signal to each of these, if it still is the one in the table.
  virtual void signal_each(const ProcessTable& table, int signal) {
    process::signal_each(table, signal);
  }
  /// Tells if a process does nothing but wait for a child.
  virtual bool waits(const ProcessEntry& one) const { return waits_for_child(one); }
  virtual Wrapper wrapper_of(const ProcessEntry& one) const { return process::wrapper_of(one); }
  virtual bool leaves_to(const ProcessEntry& parent, const ProcessEntry& child) const {
    return process::leaves_to(parent, child);
  }
};

}  // namespace elastrun::process
