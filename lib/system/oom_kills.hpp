// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/exit_status.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace elastrun::system {

/// How many processes the kernel has killed because memory ran out so far; empty where not told.
struct OomCounts {
  std::optional<std::uint64_t>
      cgroup;  // in our memory cgroup and below: memory.events, oom_control
  std::optional<std::uint64_t> machine;  // everywhere: /proc/vmstat
};

/// The number behind `key` in lines of "key number". Pure.
std::optional<std::uint64_t> counter_in(std::string_view text, std::string_view key);

/// Of /proc/self/cgroup the path in the memory hierarchy (v1) or the unified one (v2), and which of
/// both. Pure; nothing if there is neither.
struct MemoryCgroup {
  std::string path;
  bool unified = true;
};
std::optional<MemoryCgroup> memory_cgroup(std::string_view proc_self_cgroup);

/// Whether the kernel's log says that it killed this process because memory ran out. Pure.
bool log_names_victim(std::string_view kernel_log, pid_t process);

/// Tells whether a worker died because memory ran out, by comparing the kernel's counters before
/// and after, and by its log where we may read it. Nothing is watched meanwhile: two or three small
/// files are read at `begin`, and the same again when a death looks like it.
class OomKills {
 public:
  /// An attempt starts now: what was counted before is not its doing.
  void begin();
  /// A sentence of evidence, or empty. `error_text`: the exception's text, if there is one.
  std::string evidence(const process::ExitStatus& status, pid_t process,
                       std::string_view error_text) const;

 private:
  OomCounts before_;
};

OomCounts read_oom_counts();
/// The last part of the kernel's log; empty when we may not read it.
std::string read_kernel_log();

}  // namespace elastrun::system
