// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/unique_fd.hpp"

#include <array>
#include <sys/types.h>

namespace elastrun::process {

/// PR_SET_PDEATHSIG for a whole process group: when this process ends without having destroyed
/// this, however it ends, the kernel itself sends SIGKILL to all that are in the group then. So
/// also a trainer below a wrapper script dies when nobody of us is left to kill it. Not reached is
/// who has left the group: below timeout(1) without --foreground, setsid(1), `set -m`.
///
/// The means is signal-driven I/O (F_SETOWN and F_SETSIG in fcntl(2)): of two connected sockets
/// that nobody but this process holds, the one that is closed first, as the process ends, is an
/// event for the other. The kernel keeps the group, not its number: no later group of the same
/// number is hit.
class GroupDeathSignal {
 public:
  GroupDeathSignal() = default;  // no signal for anybody
  /// The group must exist. Where descriptors are short or the kernel refuses, none is armed: it is
  /// one net of several.
  explicit GroupDeathSignal(pid_t group);
  GroupDeathSignal(GroupDeathSignal&&) = default;
  GroupDeathSignal& operator=(GroupDeathSignal&&) = delete;
  /// Disarms.
  ~GroupDeathSignal();

  bool armed() const { return bool(ends_[0]); }

 private:
  std::array<UniqueFd, 2> ends_;
};

}  // namespace elastrun::process
