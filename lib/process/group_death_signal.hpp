// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/unique_fd.hpp"

#include <sys/types.h>

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

}  // namespace elastrun::process
