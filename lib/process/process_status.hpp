// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

namespace elastrun::process {

/// The bit of a signal in a set of them, as the kernel has it; 1 is the lowest signal.
constexpr std::uint64_t bit_of(int signal) {
  return std::uint64_t{1} << (signal - 1);
}

/// The facts of /proc/PID/status; defaults where it cannot be read.
struct ProcessStatus {
  pid_t tracer = 0;                                    // its debugger; 0: none
  std::optional<uid_t> user;                           // as whom it was started
  std::uint64_t blocked = 0, ignored = 0, caught = 0;  // signals, by bit_of()

  /// True if the process neither dies nor stops by that signal.
  bool survives(int signal) const { return ((blocked | ignored | caught) & bit_of(signal)) != 0; }
};
ProcessStatus read_status(pid_t pid, const std::string& proc = "/proc");

}  // namespace elastrun::process
