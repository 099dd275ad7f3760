// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// The bit of a signal in a set of them, as the kernel has it; 1 is the lowest signal.
constexpr std::uint64_t bit_of(int signal) {
  return std::uint64_t{1} << (signal - 1);
}

/// The facts of /proc/PID/status; defaults where it cannot be read.
struct ProcessStatus {
  pid_t tracer = 0;                                    // its debugger; 0: none
  std::optional<uid_t> user;                           // as whom it was started
  std::uint64_t blocked = 0, ignored = 0, caught = 0;  // signals, by bit_of()

  /// True if the process neither dies nor stops by that signal.
  bool survives(int signal) const { return ((blocked | ignored | caught) & bit_of(signal)) != 0; }
};
ProcessStatus read_status(pid_t pid, const std::string& proc = "/proc");

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

/// The numbers of its threads; none if it has gone.
std::vector<pid_t> threads_of(pid_t pid, const std::string& proc = "/proc");
/// True if a thread of it hangs in the kernel (state D), as for a disk or a file system. It may
/// hold the lock of the process's memory then, for which readers of its command line and
/// environment wait without end: mmap_lock, taken by get_cmdline() and environ_read().
bool any_thread_hangs(pid_t pid, const std::string& proc = "/proc");

/// The command line of a process in one line, as far as it is short and fit to be shown; its name
/// if it has none, is gone, or hangs in the kernel: we would hang with it.
std::string command_of(const ProcessEntry& process, const std::string& proc = "/proc");
/// "4711 (timeout 9h train.py), 4712 (sh)": no more than a person reads.
std::string names_of(const ProcessTable& table);

/// Takes the next word of a text such as the kernel writes, and what is before it, away; empty:
/// there is none.
std::string_view next_word(std::string_view& text);
/// The fields 3, which is the state, to 24 of a stat file (proc_pid_stat(5)); empty where missing.
using StatFields = std::array<std::string_view, 24 - 2>;
StatFields stat_fields(std::string_view stat);
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

/// Why a process does not run, in the words "stopped by a signal", "traced by gdb (pid 42)" or
/// "waiting for python3 (pid 43), stopped by a signal"; empty if it may. A worker may be a shell or
/// a debugger, and the trainer its child, in the same session. One that is stopped beside a process
/// that does not wait for it, an old loader or some helper, holds up nothing, and what is below
/// such a one is not looked at. Of a process that may have ended.
std::string held_by(pid_t pid);

/// True if a child of this process is stopped and has not been continued: one system call.
bool any_stopped_child();

/// How long SIGKILL may take to end a process. Then it is named, left, and waited for no more: the
/// kernel does not let go of it. Not shorter, because a process that holds much memory of a GPU may
/// well need some seconds for its end. elastrun(1) promises this limit.
constexpr Duration kKillBound = std::chrono::seconds(10);
/// For a second look, when that time has been given already.
constexpr Duration kLastLook = std::chrono::milliseconds(250);

/// True if a process runs as another user, so that no signal of ours reaches it (EPERM).
bool is_out_of_reach(pid_t pid);
/// "user 0": the one as whom a process runs; "another user" where that cannot be read.
std::string owner_of(pid_t pid, const std::string& proc = "/proc");

/// The result of killing everything that descends from this process.
struct KillResult {
  int killed = 0;      // processes that got SIGKILL
  ProcessTable alive;  // those that live on: held by the kernel (state D), or not ours to signal
  /// Some live on, and all of those are out of reach: it is of no use to wait for them.
  bool out_of_reach() const;
  /// "4711 (python, state D), 4712 (sudo, state S, of user 0)": for a message.
  std::string survivors() const;
};

/// Ends every descendant of this process with SIGKILL, but those in `spared` and below them, and
/// reaps what became its children; repeats until none is left that is in reach, or `limit` has
/// passed. All that are
/// found get the signal even if `limit` is zero, which says no more than what was alive before.
///
/// Costs one or two system calls when no child lives. Otherwise blocks while the victims die,
/// normally a millisecond. Each victim is held by pidfd and checked by its start time before it is
/// signalled, so a reused pid cannot be hit. This process must be a subreaper; otherwise those
/// whose parents have ended are not found.
KillResult kill_descendants(const std::vector<pid_t>& spared, Duration limit);

/// A signal for each process of a table that still is the one in the table; not waiting. SIGCONT
/// follows, without which a stopped process would notice no other than SIGKILL.
void signal_each(const ProcessTable& table, int signal);

/// SIGKILL for each process of a table that still is the one in it, children of ours or not, and
/// waits for their ends, `limit` at most. Those that live on.
ProcessTable kill_listed(const ProcessTable& table, Duration limit);

/// Reaps children that have ended and are not in `known`: orphans that were adopted. Cheap; but the
/// kernel shows only the first that has ended, so it gives up, with false, when that one is in
/// `known`, and some may be behind it.
bool reap_adopted(const std::vector<pid_t>& known);
/// Reaps without that limit, at the price of reading the list of our children.
void reap_adopted_by_table(const std::vector<pid_t>& known);

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
