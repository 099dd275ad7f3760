// SPDX-License-Identifier: Apache-2.0
#include "process/held.hpp"

#include "core/text.hpp"
#include "process/process_status.hpp"

#include <fmt/format.h>
#include <set>
#include <sys/wait.h>

namespace elastrun::process {
namespace {

std::string traced_by(pid_t tracer) {
  const auto process = read_process(tracer);
  return fmt::format("traced by {} (pid {})", process ? printable(process->name) : "a process",
                     tracer);
}

/// `seen`: a pid that was used again while we look may be its own ancestor.
std::string held_by(const ProcessEntry& process, std::set<pid_t>& seen) {
  if (!seen.insert(process.pid).second) return {};
  if (const pid_t tracer = read_status(process.pid).tracer; tracer != 0) return traced_by(tracer);
  if (process.state == 'T' || process.state == 't') return "stopped by a signal";
  const bool waits = waits_for_child(process);
  for (const auto& child : read_children(process.pid)) {
    if (child.session != process.session) continue;
    if (!waits && read_status(child.pid).tracer != process.pid) continue;
    const auto held = held_by(child, seen);
    if (held.empty()) continue;
    return fmt::format("waiting for {} (pid {}), {}", printable(child.name), child.pid, held);
  }
  return {};
}

}  // namespace

std::string held_by(pid_t pid) {
  const auto process = read_process(pid);
  if (!process || process->zombie()) return {};
  std::set<pid_t> seen;
  return held_by(*process, seen);
}

bool any_stopped_child() {
  siginfo_t info{};
  const int flags = WSTOPPED | WNOHANG | WNOWAIT;
  return ::waitid(P_ALL, 0, &info, flags) == 0 && info.si_pid != 0;
}

}  // namespace elastrun::process
