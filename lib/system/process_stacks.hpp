// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <chrono>
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

/// Signals the processes, all of them together in their order, so that many take no longer than
/// one, and returns the lines that each writes then; none if it writes none within `limit`: it is
/// stopped, or in uninterruptible sleep. Its thread is asked first, and after half of `limit` its
/// main thread, if that is in C for all that is known. One that handles another real-time signal as
/// well is not signalled: its script may have put another handler, which ends it, in the place of
/// the one that was offered. Waits, so it belongs on a thread; how long at most is known only if
/// the processes keep their word and their files are in memory.
std::vector<std::vector<std::string>> ask_python_stacks(const std::vector<StackSource>& sources,
                                                        std::chrono::milliseconds limit);

/// The places where PyTorch's flight recorder of collectives listens in a worker and writes its
/// dump: torch 2.13 has a pipe only where TORCH_NCCL_DEBUG_INFO_PIPE_FILE (for XCCL
/// TORCH_FR_DEBUG_INFO_PIPE_FILE) names one, and a dump below TORCH_FR_DUMP_TEMP_FILE or
/// TORCH_NCCL_DEBUG_INFO_TEMP_FILE, or else in its cache; each with the rank behind it, the pipe
/// also with ".pipe".
struct FlightRecorder {
  std::vector<std::string> pipes;  // where it may be
  std::string dump;
  bool operator==(const FlightRecorder&) const = default;
};
/// Reads them from the environment, "NAME=VALUE", that the worker was started with. Pure.
FlightRecorder flight_recorder_of(const std::vector<std::string>& environment, int rank);
/// Reads a process's environment at its start, from proc(5); empty where that is forbidden.
std::vector<std::string> environment_of(pid_t process);

/// Asks those for a dump that have made their pipe, and gives the names of the files into which
/// they write it, soon; of the others those that are there and not older than `since`: torch writes
/// them by itself when a collective has taken too long. Waits for the file system, but not for the
/// workers' answers.
std::vector<std::string> find_dumps(const std::vector<FlightRecorder>& recorders, WallTime since);

}  // namespace elastrun::system
