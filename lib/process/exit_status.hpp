// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/signal_names.hpp"

#include <string>

namespace elastrun::process {

/// How a child ended. `exit 9` and death by signal 9 stay two different facts.
struct ExitStatus {
  enum class How { Exited, Signaled } how = How::Exited;
  int number = 0;            // the exit code 0-255, or the signal
  bool core_dumped = false;  // only with Signaled

  static ExitStatus exited(int code) { return {How::Exited, code, false}; }
  static ExitStatus signaled(int signal) { return {How::Signaled, signal, false}; }
  /// From the raw status of waitpid(2). The only place that knows its bits.
  static ExitStatus from_wait(int raw);

  bool success() const { return how == How::Exited && number == 0; }
  bool by_signal(int signal) const { return how == How::Signaled && number == signal; }
  /// torchrun's one number: the exit code, or the negative signal.
  int as_python() const { return how == How::Exited ? number : -number; }
  /// The number that a shell would show: the exit code, or 128 + signal.
  int as_shell() const { return how == How::Exited ? number : 128 + number; }
  /// "exit code 3", "SIGSEGV (core dumped)".
  std::string text() const;
  bool operator==(const ExitStatus&) const = default;
};

using elastrun::signal_name;
/// Names a signal as torchrun prints it: "<N/A>" for the signals that Python has no name for, which
/// are the real-time ones between SIGRTMIN and SIGRTMAX.
std::string torchrun_signal_name(int signal);

}  // namespace elastrun::process
