// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::system {

/// A Python process's offer: at this signal it writes to this descriptor of its, a file in memory
/// (memfd_create(2)). Its `thread` writes the stacks of all threads as soon as it gets the
/// interpreter lock. Any other thread that gets the signal, the main one if it is sent to the
/// process, writes its own by faulthandler from inside the signal handler, so even while it hangs
/// in C with the lock; one that runs Python then may crash (Python 3.13).
struct StackOffer {
  int signal = 0;
  int descriptor = -1;
  pid_t thread = 0;  // 0: none
  bool operator==(const StackOffer&) const = default;
};

/// A process whose stacks are wanted. `pidfd` is that of `pid`: no other process is signalled.
struct StackSource {
  pid_t pid = 0;
  int pidfd = -1;
  StackOffer offer;
};

/// Asks all of them together, in their order: signals all first and then waits, so that many take
/// no longer than one.
std::vector<std::vector<std::string>> ask_python_stacks(const std::vector<StackSource>& sources,
                                                        std::chrono::milliseconds limit);

/// Signals the process, and returns the lines that it writes then; none if it writes none within
/// `limit`: it is stopped, or in uninterruptible sleep. Its thread is asked first, and after half
/// of `limit` its main thread, if that is in C for all that is known. One that handles another
/// real-time signal as well is not signalled: its script may have put another handler, which ends
/// it, in the place of the one that was offered. Waits, so it belongs on a thread; how long at most
/// is known only if the process keeps its word and the file is in memory. `pidfd` is that of `pid`:
/// no other process is signalled.
std::vector<std::string> ask_python_stacks(pid_t pid, int pidfd, StackOffer offer,
                                           std::chrono::milliseconds limit);

}  // namespace elastrun::system
