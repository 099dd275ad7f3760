// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <termios.h>

namespace elastrun::process {

/// The modes of the terminal that a job was started on: a worker that is killed while it asks for a
/// password, or in a debugger's prompt, cannot give back the echo that it has taken.
class TerminalModes {
 public:
  /// Those of the controlling terminal, if this process is in its foreground and no other of its
  /// group may change them: not a pager that reads from us through a pipe, nor a script that has
  /// started us with `&`, which has stdin from elsewhere.
  static TerminalModes now();
  /// Switches on again what has been switched off since: echo, lines, signals, translation. Does
  /// nothing if this process is not in the foreground any more. SIGTTOU must be blocked or ignored.
  void restore() const;

 private:
  std::optional<termios> modes_;
};

/// `now`, with each such mode on that is on in `before`, and the keys of `before`. Pure.
termios with_modes_of(const termios& before, termios now);

}  // namespace elastrun::process
