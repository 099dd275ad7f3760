// SPDX-License-Identifier: Apache-2.0
#include "process/clone_into.hpp"

#include <cerrno>
#include <cstdint>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

namespace elastrun::process {
namespace {

// struct clone_args of <linux/sched.h>, which cannot be included beside <sched.h>.
struct alignas(8) CloneArguments {
  std::uint64_t flags = 0, pidfd = 0, child_tid = 0, parent_tid = 0, exit_signal = 0;
  std::uint64_t stack = 0, stack_size = 0, tls = 0, set_tid = 0, set_tid_size = 0, cgroup = 0;
};
constexpr std::uint64_t kIntoCgroup = 0x200000000;  // CLONE_INTO_CGROUP, Linux 5.7

// The child comes out of the system call on the new stack, where no frame of ours exists: so it may
// not return from anything, and what it calls has to be in registers. That is why this is assembly.
#if defined(__x86_64__)
long clone3(const CloneArguments* arguments, int (*run)(void*), void* argument) {
  long result = SYS_clone3;
  register void* child_argument asm("r8") = argument;
  register int (*child_run)(void*) asm("r9") = run;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"  // the end of the chain of frames, for debuggers
      "mov %%r8, %%rdi\n\t"
      "call *%%r9\n\t"
      "ud2\n"
      "1:"
      : "+a"(result)
      : "D"(arguments), "S"(sizeof *arguments), "r"(child_argument), "r"(child_run)
      : "rcx", "r11", "memory", "cc");
  return result;
}
#elif defined(__aarch64__)
long clone3(const CloneArguments* arguments, int (*run)(void*), void* argument) {
  register long x0 asm("x0") = reinterpret_cast<long>(arguments);
  register long x1 asm("x1") = sizeof *arguments;
  register void* x2 asm("x2") = argument;
  register int (*x3)(void*) asm("x3") = run;
  register long x8 asm("x8") = SYS_clone3;
  asm volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x0, x2\n\t"
      "blr x3\n\t"
      "brk #1\n"
      "1:"
      : "+r"(x0)
      : "r"(x1), "r"(x2), "r"(x3), "r"(x8)
      : "memory", "cc");
  return x0;
}
#else
long clone3(const CloneArguments*, int (*)(void*), void*) {
  return -ENOSYS;
}
#endif

}  // namespace

long clone_into(int cgroup_fd, unsigned long flags, void* stack, std::size_t stack_size,
                int (*run)(void*), void* argument, int& pidfd) {
  CloneArguments arguments;
  arguments.flags = flags | kIntoCgroup;
  arguments.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
  arguments.exit_signal = SIGCHLD;
  arguments.stack = reinterpret_cast<std::uint64_t>(stack);
  arguments.stack_size = stack_size;
  arguments.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  return clone3(&arguments, run, argument);
}

}  // namespace elastrun::process
