// SPDX-License-Identifier: Apache-2.0
#include "process/vfork_into.hpp"

#include <cerrno>
#include <sched.h>
#include <signal.h>

namespace elastrun::process {

CloneArguments::CloneArguments(int cgroup_fd, bool shares_descriptors, int& pidfd_of_child)
    : flags(CLONE_VM | CLONE_VFORK | CLONE_PIDFD | (shares_descriptors ? CLONE_FILES : 0U)),
      pidfd(reinterpret_cast<std::uint64_t>(&pidfd_of_child)),
      exit_signal(SIGCHLD) {
  constexpr std::uint64_t kIntoCgroup = 0x200000000;  // CLONE_INTO_CGROUP, Linux 5.7
  if (cgroup_fd < 0) return;
  flags |= kIntoCgroup;
  cgroup = static_cast<std::uint64_t>(cgroup_fd);
}

// Why not syscall(2), and without CLONE_VM: to copy the page tables of an agent of 6 MB costs 0.6
// ms for each worker, a fifth of the launch of 64. And why not vfork(2) and a write to
// cgroup.procs: the first such write waits for a grace period of the kernel's RCU, 5 to 20 ms, each
// round.
//
// With CLONE_VM the child runs on our stack, as after vfork(2), and overwrites the address to which
// a function in C++ would return in the parent. So this one keeps it in a register.
#if defined(__x86_64__)
asm(R"(
  .pushsection .text.elastrun_vfork_into, "ax", @progbits
  .globl elastrun_vfork_into
  .hidden elastrun_vfork_into
  .type elastrun_vfork_into, @function
elastrun_vfork_into:
  popq %rdx
  movl $435, %eax
  syscall
  pushq %rdx
  ret
  .size elastrun_vfork_into, . - elastrun_vfork_into
  .popsection
)");
#elif defined(__aarch64__)
asm(R"(
  .pushsection .text.elastrun_vfork_into, "ax", @progbits
  .globl elastrun_vfork_into
  .hidden elastrun_vfork_into
  .type elastrun_vfork_into, %function
elastrun_vfork_into:
  mov x8, #435
  svc #0
  ret
  .size elastrun_vfork_into, . - elastrun_vfork_into
  .popsection
)");
#else
extern "C" long elastrun_vfork_into(const CloneArguments*, std::size_t) {
  return -ENOSYS;
}
#endif

}  // namespace elastrun::process
