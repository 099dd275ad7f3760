// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/process_table.hpp"

#include <string>
#include <vector>

namespace elastrun::process {

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

}  // namespace elastrun::process
