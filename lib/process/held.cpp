// SPDX-License-Identifier: Apache-2.0
#include "process/held.hpp"

#include "core/read_file.hpp"
#include "core/text.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

namespace elastrun::process {
namespace {

/// The debugger of a process; 0: none.
pid_t tracer_of(pid_t pid) {
  constexpr std::string_view kTracer = "TracerPid:";
  const auto status = read_kernel_file(fmt::format("/proc/{}/status", pid));
  const auto at = status.find(kTracer);
  if (at == std::string::npos) return 0;
  const auto line = std::string_view(status).substr(at + kTracer.size());
  return static_cast<pid_t>(parse_int(trim(line.substr(0, line.find('\n')))).value_or(0));
}

std::string traced_by(pid_t tracer) {
  const auto process = read_process(tracer);
  return fmt::format("traced by {} (pid {})", process ? printable(process->name) : "a process",
                     tracer);
}

}  // namespace

std::string held_by(const ProcessEntry& process, const ProcessTable& below) {
  if (const pid_t tracer = tracer_of(process.pid); tracer != 0) return traced_by(tracer);
  if (process.state == 'T' || process.state == 't') return "stopped by a signal";
  const bool waits = waits_for_child(process);
  for (const auto& child : below) {
    if (child.parent != process.pid || child.session != process.session) continue;
    if (!waits && tracer_of(child.pid) != process.pid) continue;
    const auto held = held_by(child, below);
    if (held.empty()) continue;
    return fmt::format("waiting for {} (pid {}), {}", printable(child.name), child.pid, held);
  }
  return {};
}

std::string held_by(pid_t pid) {
  const auto process = read_process(pid);
  if (!process || process->zombie()) return {};
  return held_by(*process, read_descendants(pid));
}

bool any_stopped_child() {
  siginfo_t info{};
  const int flags = WSTOPPED | WNOHANG | WNOWAIT;
  return ::waitid(P_ALL, 0, &info, flags) == 0 && info.si_pid != 0;
}

}  // namespace elastrun::process
