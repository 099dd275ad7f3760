// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace elastrun::process {

/// struct clone_args of <linux/sched.h>, which cannot be included beside <sched.h>, for a child as
/// after vfork(2): it has our memory, and we stand still until it has left it.
struct alignas(8) CloneArguments {
  /// `pidfd` gets the child's; it is born in the cgroup of `cgroup_fd`, or in ours if that is -1.
  /// With `shares_descriptors` what the child opens and closes is ours, until it leaves the table.
  CloneArguments(int cgroup_fd, bool shares_descriptors, int& pidfd);
  std::uint64_t flags, pidfd, child_tid = 0, parent_tid = 0, exit_signal;
  std::uint64_t stack = 0, stack_size = 0, tls = 0, set_tid = 0, set_tid_size = 0, cgroup = 0;
};

/// clone3(2), for which the C library has no function. Returns twice, as vfork(2) does: 0 in the
/// child, which must not return from the function that called this; in the parent the pid or
/// -errno, -ENOSYS on machines for which it is not written.
extern "C" [[gnu::returns_twice]] long elastrun_vfork_into(const CloneArguments* arguments,
                                                           std::size_t size);

}  // namespace elastrun::process
