// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"

#include <signal.h>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// How long a removal goes on at most, all paths together: their file system may never answer.
constexpr Duration kRemovalBound = std::chrono::seconds(5);
/// And once an end is wanted: enough where the file system does answer.
constexpr Duration kRemovalAfterSignal = std::chrono::seconds(1);

/// Removes one path with all below; symbolic links are not followed.
void remove_path(const std::string& path);

/// Removes the paths in their order, each with all below; those that may still be there when it
/// gave up. What cannot be removed counts as removed, as if it had been tidied up elsewhere.
///
/// A child does it (do_in_child()), which has no descriptor of ours. Waits kRemovalBound at most,
/// kRemovalAfterSignal once a signal has come.
std::vector<std::string> remove_within_bound(const std::vector<std::string>& paths,
                                             void (*remove)(const std::string&) = remove_path);

}  // namespace elastrun::process

/// The process that the user started stays as the *guardian*: it does nothing but wait, so nothing
/// goes wrong in it. The *agent*, its child, does the work. As child subreapers both inherit every
/// orphan of the job, so when one of them is gone, also by SIGKILL, the other still finds and ends
/// all that was started, even what left its session, its group and its environment.
///
/// The guardian passes on each signal that can be passed on, with its true sender, and ends as the
/// agent ended: same exit code, or the same signal (without a second core file).
/// When both are killed by SIGKILL at the same moment, the kernel kills the workers' groups
/// (GroupDeathSignal). What has left them survives, until the next agent finds their cgroup
/// (end_stale_cgroups()), if there is one.
namespace elastrun::guardian {

struct Board;  // the little shared memory through which the agent speaks to the guardian

/// The directories that the guardian removes if the agent does not come to it. Usable on any
/// thread, and also after the agent's end below has gone; copies are the same.
class Directories {
 public:
  /// Has the guardian remove a directory with all below if the agent does not come to it (it
  /// follows no symbolic links, waits for no file system longer than kRemovalBound, and names
  /// what it leaves behind). False if the path is too long or too many are remembered (8 of up to
  /// 1000 bytes): then it is not.
  bool remember(std::string_view path) const;
  /// Forgets a path: it is removed, or is to be kept.
  void forget(std::string_view path) const;

 protected:
  Board* board_ = nullptr;
};

/// The agent's end. It lives as long as the agent; moving it is all one may do with it.
class Agent : public Directories {
 public:
  /// Readable (poll, pidfd) from the moment the guardian has died: then kill everything, at once.
  /// -1 without a guardian, because the system refused a process for it.
  int guardian_fd() const { return guardian_.get(); }
  pid_t guardian_pid() const { return guardian_pid_; }

  /// Remembers a cgroup as a directory; the guardian kills its processes first.
  bool remember_cgroup(std::string_view path);
  /// SIGTSTP, SIGTTIN and SIGTTOU stop the guardian and nothing else, unless they are among these.
  void relay(const std::vector<int>& signals);
  /// These are passed on as passing_signal().
  void tell_apart(const std::vector<int>& signals);
  /// Tells the guardian not to wait again for what the agent leaves alive at its end: it has had
  /// SIGKILL, and time enough.
  void give_up();

 private:
  friend Agent split();
  UniqueFd guardian_;
  pid_t guardian_pid_ = 0;
};

/// The variable of a pair that exists already: "BOARD GUARDIAN AGENT", an inherited memory file for
/// what they share, or -1, and two process numbers, of which the second is a child of the first
/// (elastrun-protocol(7)). A caller that forks its workers has made both: the agent is to be an
/// ancestor of the process that has the caller's memory, to which no program leads back.
inline constexpr const char* kPair = "ELASTRUN_PAIR";

/// Divides this process in two, or takes its place in a pair (kPair). Returns in the agent only;
/// the guardian exits in here.
///
/// To be called first in main, or before it, while nothing is allocated and no thread exists. In
/// the agent then: own process group, descriptors 0-2 open (on /dev/null where they were closed),
/// SIGCHLD default, SIGPIPE, SIGTTOU and SIGXFSZ ignored, no signal blocked, otherwise ignored
/// signals still ignored (nohup); of these, those that process::stays_ignored() denies are passed
/// on. Children that the process had before (`sh -c 'thing & exec elastrun'`) are left alone.
Agent split();

}  // namespace elastrun::guardian
