// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/agent_processes.hpp"

#include "process/process_table.hpp"

#include <cerrno>
#include <fstream>
#include <signal.h>
#include <unistd.h>

namespace elastrun::rendezvous {
namespace {

ProcessMark mark_of(pid_t pid) {
  if (pid <= 0) return {};
  const auto entry = process::read_process(pid);
  return entry ? ProcessMark{pid, entry->start_time} : ProcessMark{};
}

bool is_gone(const ProcessMark& mark) {
  if (mark.pid <= 0) return true;
  const auto entry = process::read_process(mark.pid);
  // The start time tells a process from a later one with its number; a zombie runs nothing more.
  if (entry) return entry->zombie() || entry->start_time != mark.start_time;
  // /proc may hide processes of others (hidepid in proc(5)), so only kill(2) can say that one has
  // gone.
  return ::kill(mark.pid, 0) != 0 && errno == ESRCH;
}

AgentProcesses own_machine() {
  AgentProcesses own;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), own.boot);
  own.namespace_ = process::own_pid_namespace();
  return own;
}

const AgentProcesses& this_machine() {
  static const AgentProcesses own = own_machine();
  return own;
}

}  // namespace

AgentProcesses own_processes(pid_t guardian) {
  static const ProcessMark own = mark_of(::getpid());
  AgentProcesses processes = this_machine();
  processes.agent = own;
  processes.guardian = mark_of(guardian);
  return processes;
}

bool are_ours(const AgentProcesses& processes) {
  const AgentProcesses& own = this_machine();
  // Numbers of processes mean something within one boot and one pid namespace only.
  return !own.boot.empty() && own.namespace_ != 0 && processes.boot == own.boot &&
         processes.namespace_ == own.namespace_ && processes.agent.pid > 0;
}

bool are_gone(const AgentProcesses& processes) {
  return is_gone(processes.agent) && is_gone(processes.guardian);
}

}  // namespace elastrun::rendezvous
