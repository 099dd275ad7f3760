// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"
#include "process/launcher.hpp"
#include "process/spawn.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// PR_SET_PDEATHSIG for a whole process group: when this process ends without having destroyed
/// this, however it ends, the kernel itself sends SIGKILL to all that are in the group then. So
/// also a trainer below a wrapper script dies when none of us is left to kill it. Not reached is
/// who has left the group: below timeout(1) without --foreground, setsid(1), `set -m`.
///
/// The means is signal-driven I/O (F_SETOWN and F_SETSIG in fcntl(2)): of the two ends of a pipe
/// that only this process holds, the one that is closed first, as the process ends, is an event for
/// the other. The kernel keeps the group, not its number: no later group of the same number is hit.
/// A pair of sockets would do as well, at twice the cost.
class GroupDeathSignal {
 public:
  GroupDeathSignal() = default;
  GroupDeathSignal(const GroupDeathSignal&) = delete;
  GroupDeathSignal& operator=(const GroupDeathSignal&) = delete;
  ~GroupDeathSignal() { disarm(); }

  /// The group must exist. Where descriptors are short or the kernel refuses, nothing is armed: it
  /// is one net of several.
  void arm(pid_t group);
  void disarm();
  bool armed() const { return bool(read_end_); }

 private:
  UniqueFd read_end_, write_end_;
};

class PosixChild;
struct Family;  // the children of one launcher

/// The launcher that starts real processes. It sets SIGCHLD to its default action, because an
/// inherited "ignore" would make the kernel reap the children before we have seen how they ended.
class PosixLauncher final : public Launcher {
 public:
  /// `io` and `clock` must outlive the launcher and its children; the children may outlive it.
  PosixLauncher(boost::asio::io_context& io, Clock& clock);
  Result<std::unique_ptr<Child>> start(const LaunchRequest& request, OnExit on_exit) override;
  /// The children whose Child still exists, also those that have ended: what a sweep must leave.
  std::vector<pid_t> children() const;
  /// True if one of them has not been seen to end.
  bool any_running() const;
  /// Asked first for a request with a `fork_slot`; where it has nothing to say, exec makes one.
  using Serve = std::function<std::optional<Result<Spawned>>(const LaunchRequest&)>;
  void serve_by(Serve serve) { serve_ = std::move(serve); }

 private:
  void guard_soon(PosixChild& child);

  boost::asio::io_context& io_;
  Clock& clock_;
  Serve serve_;
  std::shared_ptr<Family> family_;
};

}  // namespace elastrun::process
