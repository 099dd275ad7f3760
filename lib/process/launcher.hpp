// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/signal_names.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// How a child ended. `exit 9` and death by signal 9 stay two different facts.
struct ExitStatus {
  enum class How { Exited, Signaled } how = How::Exited;
  int number = 0;            // the exit code 0-255, or the signal
  bool core_dumped = false;  // only with Signaled

  static ExitStatus exited(int code) { return {How::Exited, code, false}; }
  static ExitStatus signaled(int signal) { return {How::Signaled, signal, false}; }
  /// From the raw status of waitpid(2). The only place that knows its bits.
  static ExitStatus from_wait(int raw);

  bool success() const { return how == How::Exited && number == 0; }
  bool by_signal(int signal) const { return how == How::Signaled && number == signal; }
  /// torchrun's one number: the exit code, or the negative signal.
  int as_python() const { return how == How::Exited ? number : -number; }
  /// The number that a shell would show: the exit code, or 128 + signal.
  int as_shell() const { return how == How::Exited ? number : 128 + number; }
  /// "exit code 3", "SIGSEGV (core dumped)".
  std::string text() const;
  bool operator==(const ExitStatus&) const = default;
};

using elastrun::signal_name;
/// Names a signal as torchrun prints it: "<N/A>" for the signals that Python has no name for, which
/// are the real-time ones between SIGRTMIN and SIGRTMAX.
std::string torchrun_signal_name(int signal);

/// A program to start, and the state in which it starts.
struct LaunchRequest {
  std::vector<std::string> argv;         // argv[0] is looked up in PATH unless it has a slash
  std::vector<std::string> environment;  // "NAME=VALUE", all of it: nothing is inherited
  std::string directory{};               // empty: the launcher's
  int stdin_fd = -1;                     // -1: inherited; each is duplicated, never taken over
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<int> cpus{};  // sched_setaffinity(2) before exec; empty: untouched
  /// The soft RLIMIT_NOFILE, where ours is not the one that the user gave.
  std::optional<std::uint64_t> open_files{};
  int cgroup_fd = -1;  // directory of a cgroup v2 to be born in (CLONE_INTO_CGROUP); -1: ours
  int fork_slot = -1;  // a local rank: a fork server may have a child for it; -1: by exec
};

/// The end of a child, seen by pidfd as it happens.
struct Exit {
  ExitStatus status;
  TimePoint at;
  WallTime wall;
  std::int64_t peak_rss_bytes = 0;  // ru_maxrss of wait4(2)
};

/// A started child: leader of a new session and process group, which starts with no signal
/// blocked or ignored and descriptors 0-2 only. It dies with its parent (PR_SET_PDEATHSIG), and so
/// does its group (GroupDeathSignal).
///
/// Its zombie is kept until this object goes: so its pid, which is also its group's number, cannot
/// be given to a stranger while the group may still be signalled. Destroying it kills what is left
/// of the group with SIGKILL, and reaps.
class Child {
 public:
  virtual ~Child() = default;
  virtual pid_t pid() const = 0;
  virtual bool ended() const = 0;
  /// Signals every process of the group, also after the leader has ended. False if not one of them
  /// could be signalled, because they run as other users (EPERM): below sudo(8).
  virtual bool signal_group(int signal) noexcept = 0;
  /// True if any live process (not the leader's zombie) is still in the group.
  virtual bool group_alive() const = 0;
};

/// Starts children. PosixLauncher is the real one; tests have a fake.
class Launcher {
 public:
  using OnExit = std::function<void(const Exit&)>;
  virtual ~Launcher() = default;
  /// Starts one child; `on_exit` runs once on the loop when it has ended, never inside this call
  /// and never after the Child was destroyed. Fails with Spawn: program not found, not executable,
  /// no descriptor or memory left, environment too large; then nothing was left behind.
  virtual Result<std::unique_ptr<Child>> start(const LaunchRequest& request, OnExit on_exit) = 0;
};

}  // namespace elastrun::process
