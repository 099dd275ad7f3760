// SPDX-License-Identifier: Apache-2.0
#include "system/oom_kills.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "process/cgroup.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

namespace elastrun::system {
namespace {

// The newest lines are kept: what the kernel has logged since its start may be far more.
constexpr std::size_t kMaxKernelLog = 1u << 20;

/// Contents of a file of our memory cgroup. Inside a container the path that /proc tells may lie
/// outside of what is mounted; then the root of the mount is ours.
std::string read_in_cgroup(const std::string& mount, const std::string& path,
                           const std::string& file) {
  auto text = read_kernel_file(mount + path + "/" + file);
  return text.empty() ? read_kernel_file(mount + "/" + file) : text;
}

std::string address_space_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return fmt::format(" (its address space is limited to {} by ulimit -v)",
                     format_bytes(limit.rlim_cur));
}

/// Returns what the program itself said about memory.
std::string said_out_of_memory(std::string_view text) {
  if (text.contains("CUDA out of memory") || text.contains("HIP out of memory") ||
      text.starts_with("torch.OutOfMemoryError") || text.contains("cuda.OutOfMemoryError")) {
    return "the GPU ran out of memory";
  }
  if (text.starts_with("MemoryError") || text.contains("can't allocate memory") ||
      text.contains("Cannot allocate memory") || text.contains("std::bad_alloc")) {
    return "it could not get memory" + address_space_limit();
  }
  return {};
}

/// The last part of the kernel's log; empty if we may not read it.
std::string read_kernel_log(const std::string& path) {
  std::string log;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::array<char, 8192> record;  // each read(2) gives one
  while (fd) {
    // 8192 bytes hold the longest record; a smaller buffer would get EINVAL (Linux,
    // Documentation/ABI/testing/dev-kmsg).
    const auto got = ::read(fd.get(), record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;  // overwritten while we read: go on with the next
    if (got <= 0) break;
    log.append(record.data(), static_cast<std::size_t>(got));
    // At twice the size, so that the copy costs little for each byte.
    if (log.size() > 2 * kMaxKernelLog) log.erase(0, log.size() - kMaxKernelLog);
  }
  return log;
}

bool rose(const std::optional<std::uint64_t>& before, const std::optional<std::uint64_t>& now) {
  return before && now && *now > *before;
}

}  // namespace

std::optional<std::uint64_t> counter_in(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ') {
      std::uint64_t number = 0;
      const auto digits = line.substr(key.size() + 1);
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (parsed.ec == std::errc()) return number;
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return std::nullopt;
}

std::optional<MemoryCgroup> memory_cgroup(std::string_view proc_self_cgroup) {
  std::optional<MemoryCgroup> unified;
  for (auto& place : process::cgroup_places(proc_self_cgroup)) {
    if (place.path == "/") place.path.clear();
    // A machine with both versions has the memory controller in one of them: if it is named here,
    // it is version 1, and the line of version 2 tells nothing about memory.
    if (place.has("memory")) return MemoryCgroup{std::move(place.path), false};
    if (place.unified) unified = MemoryCgroup{std::move(place.path), true};
  }
  return unified;
}

bool log_names_victim(std::string_view kernel_log, pid_t process, std::uint64_t last) {
  // "Out of memory: Killed process 1234 (python3)", "Memory cgroup out of memory: Killed process"
  constexpr std::string_view kKilled = "Killed process ";
  // With the blank behind, or process 12 would be found in 123.
  const auto wanted = fmt::format("{}{} ", kKilled, process);
  while (last > 0) {
    const auto at = kernel_log.rfind(kKilled);
    if (at == std::string_view::npos) return false;
    const auto before = kernel_log.substr(0, at);
    const auto line = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
    const bool is_oom = line.contains("ut of memory") || line.contains("oom");
    if (is_oom && kernel_log.substr(at).starts_with(wanted)) return true;
    if (is_oom) --last;
    kernel_log = before;
  }
  return false;
}

OomCounts read_oom_counts() {
  OomCounts counts;
  counts.machine = counter_in(read_kernel_file("/proc/vmstat"), "oom_kill");
  const auto own = memory_cgroup(read_kernel_file("/proc/self/cgroup"));
  if (!own) return counts;
  const auto text = own->unified
                        ? read_in_cgroup("/sys/fs/cgroup", own->path, "memory.events")
                        : read_in_cgroup("/sys/fs/cgroup/memory", own->path, "memory.oom_control");
  counts.cgroup = counter_in(text, "oom_kill");
  return counts;
}

void OomKills::begin() {
  before_ = count_();
}

std::string OomKills::diagnostics(const process::ExitStatus& status, pid_t process,
                                  std::string_view error_text) const {
  // The program's words come first: it knows which memory it asked for.
  if (auto said = said_out_of_memory(error_text); !said.empty()) return said;
  if (!status.by_signal(SIGKILL)) return {};
  const auto now = count_();
  // Older records may be about another process that had the same number. By their count and not by
  // time: the clock of the records runs at another rate.
  const auto kills = rose(before_.machine, now.machine) ? *now.machine - *before_.machine : 0;
  if (kills > 0 && log_names_victim(read_kernel_log(path_), process, kills)) {
    return "the kernel killed it because memory ran out (its log names the process)";
  }
  // Before the machine's: its counter rises for kills of a cgroup as well.
  if (rose(before_.cgroup, now.cgroup)) {
    return "the kernel killed it because the memory limit of its cgroup was reached";
  }
  if (rose(before_.machine, now.machine)) {
    return "the kernel killed processes of this machine because memory ran out, probably it too";
  }
  return {};
}

}  // namespace elastrun::system
