// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// One process as /proc/PID/stat tells it.
struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  char state = '?';              // R, S, D, T, Z, ...
  std::uint64_t start_time = 0;  // in clock ticks since boot: with the pid, unique until reboot
  std::string name;

  bool zombie() const { return state == 'Z' || state == 'X'; }
  bool operator==(const ProcessEntry&) const = default;
};

/// A start time later than any.
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

/// The processes to search for descendants. Pure: no process is touched.
using ProcessTable = std::vector<ProcessEntry>;

/// The inode of our pid namespace; 0 if /proc is not that of it. Where it is not (`unshare --pid`
/// without --mount-proc), the numbers in there are those of others: then /proc has no process.
std::uint64_t own_pid_namespace();

/// True if a thread of it hangs in the kernel (state D), as for a disk or a file system. It may
/// hold the lock of the process's memory then, for which readers of its command line and
/// environment wait without end: mmap_lock, taken by get_cmdline() and environ_read().
bool any_thread_hangs(pid_t pid, const std::string& proc = "/proc");

/// The command line of a process in one line, as far as it is short and fit to be shown; its name
/// if it has none, is gone, or hangs in the kernel: we would hang with it.
std::string command_of(const ProcessEntry& process, const std::string& proc = "/proc");

/// From the text of a stat file. A name may hold blanks and parentheses.
std::optional<ProcessEntry> parse_process(std::string_view stat);
std::optional<ProcessEntry> read_process(pid_t pid, const std::string& proc = "/proc");
/// The start_time of a process that begins now. A process of which it is greater, or the same, has
/// begun since; that may be wrong by a tick for one that began in this tick.
std::uint64_t start_time_now();
/// Every process that we may see: one file each, some microseconds.
ProcessTable read_all_processes(const std::string& proc = "/proc");
/// The descendants of `ancestor`, without it, in no order. Where the kernel keeps lists of children
/// (CONFIG_PROC_CHILDREN) only those are read, otherwise the whole table.
ProcessTable read_descendants(pid_t ancestor, const std::string& proc = "/proc");
/// Reads the children of `parent` alone.
ProcessTable read_children(pid_t parent, const std::string& proc = "/proc");

/// Lists the descendants of `ancestor`, except `spared` and everything below these.
ProcessTable descendants(const ProcessTable& table, pid_t ancestor,
                         const std::vector<pid_t>& spared = {});

/// True if this process has a child that lives, known or adopted: one system call. A subreaper
/// adopts orphans, so false also means: not one live descendant.
bool any_live_child();
/// True if such a child is in one process group.
bool any_live_child_in_group(pid_t group);
/// True if the main thread of a process waits for a child, as a shell does for what it has started;
/// with `unless_hidden` also if a process sleeps and the kernel does not tell on what (wchan in
/// proc(5)).
bool waits_for_child(const ProcessEntry& process, const std::string& proc = "/proc",
                     bool unless_hidden = false);
/// True if orphaned descendants of this process become its children.
bool is_subreaper();

}  // namespace elastrun::process
