// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/exit_status.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>

namespace elastrun::system {

/// How many processes the kernel has killed because memory ran out so far; empty where not told.
struct OomCounts {
  std::optional<std::uint64_t>
      cgroup;  // in our memory cgroup and below: memory.events, oom_control
  std::optional<std::uint64_t> machine;  // everywhere: /proc/vmstat
};

OomCounts read_oom_counts();

/// The number behind `key` in lines of "key number". Pure.
std::optional<std::uint64_t> counter_in(std::string_view text, std::string_view key);

/// The path from /proc/self/cgroup in the memory hierarchy (v1) or the unified one (v2), and which
/// of both. Pure; nothing if there is neither.
struct MemoryCgroup {
  std::string path;
  bool unified = true;
};
std::optional<MemoryCgroup> memory_cgroup(std::string_view proc_self_cgroup);

/// True if the kernel's log says that it killed this process because memory ran out, and no more
/// than `last` such kills are in the log from there on. Pure.
bool log_names_victim(std::string_view kernel_log, pid_t process, std::uint64_t last);

/// Tells whether a worker died because memory ran out, by comparing the kernel's counters before
/// and after, and by the victims that its log names where we may read it: as many of the last ones
/// as were counted meanwhile. Nothing is watched: two or three small files are read at `begin`, and
/// the same again when a death looks like it. The log is not opened before: that takes as long as
/// starting a process where it is large.
class OomKills {
 public:
  using Count = std::function<OomCounts()>;
  /// `kernel_log`: where its records are read.
  explicit OomKills(Count count = read_oom_counts, std::string kernel_log = "/dev/kmsg")
      : count_(std::move(count)), path_(std::move(kernel_log)) {}

  /// An attempt starts now: what was counted or logged before is not its doing, and may be about
  /// another process that had the same number.
  void begin();
  /// Returns a sentence about what the kernel or the program says of it; or empty. `error_text`:
  /// the exception's text, if there is one.
  std::string diagnostics(const process::ExitStatus& status, pid_t process,
                          std::string_view error_text) const;

 private:
  Count count_;
  std::string path_;
  OomCounts before_;
};

}  // namespace elastrun::system
