// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::system {

/// The state of one thread of a process in procfs. Empty members: the kernel does not tell.
struct ThreadState {
  pid_t id = 0;
  std::string name;
  char state = '?';                       // R, S, D, T, Z, ...
  std::string wait_channel;               // "futex_wait_queue"
  std::string system_call;                // "futex", "call 451"; empty: none, or not told
  std::vector<std::string> kernel_stack;  // innermost first; only root may read it
  bool operator==(const ThreadState&) const = default;
};

/// The name of the call in the text of /proc/PID/syscall; empty for a thread that is in none. Pure.
std::string system_call_in(std::string_view text);
/// The functions in the text of /proc/PID/stack. Pure.
std::vector<std::string> kernel_stack_in(std::string_view text);

/// The threads of a process, its main thread first, `most` at most; none if it has gone. Waits for
/// nothing but the kernel.
std::vector<ThreadState> read_threads(pid_t pid, std::size_t most = 256,
                                      const std::string& proc = "/proc");

/// For people: a paragraph for each group of threads that do the same, the largest group first, but
/// that of the main thread before all. Lines without end. Pure.
std::vector<std::string> thread_lines(const std::vector<ThreadState>& threads);

}  // namespace elastrun::system
