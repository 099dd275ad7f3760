// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace elastrun::process {

/// clone3(2) with CLONE_INTO_CGROUP, for which the C library has no function: the child is born in
/// the cgroup of `cgroup_fd` and calls `run(argument)` on `stack`; `run` must not return.
/// `flags` must hold CLONE_PIDFD. Gives the pid, or -errno; -ENOSYS on machines that we have not
/// written it for.
long clone_into(int cgroup_fd, unsigned long flags, void* stack, std::size_t stack_size,
                int (*run)(void*), void* argument, int& pidfd);

}  // namespace elastrun::process
