// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace elastrun::rendezvous {

/// A process by what no other one has until the machine is started again. No `pid`: there is none.
struct ProcessMark {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // as process::ProcessEntry
  bool operator==(const ProcessMark&) const = default;
};

/// The processes of an agent, and of which kernel and pid namespace these numbers are: as it claims
/// in its first word. A lie misleads only about the liar's own end.
struct AgentProcesses {
  std::string boot;              // /proc/sys/kernel/random/boot_id; empty: not told
  std::uint64_t namespace_ = 0;  // process::own_pid_namespace
  ProcessMark agent, guardian;
  bool operator==(const AgentProcesses&) const = default;
};

/// Those of this process. Its start and its machine are read once.
AgentProcesses own_processes(pid_t guardian);

/// Whether both are of this machine and pid namespace: then they can be looked at from here.
bool are_ours(const AgentProcesses& processes);

/// Whether both have ended, and with the last of them all that the kernel or they had to end. Not,
/// where that cannot be seen (hidepid in proc(5)).
bool are_gone(const AgentProcesses& processes);

}  // namespace elastrun::rendezvous
