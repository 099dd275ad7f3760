// SPDX-License-Identifier: Apache-2.0
#include "process/terminal_modes.hpp"

#include "core/unique_fd.hpp"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

bool is_pipe(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

/// The controlling terminal if this process is in its foreground.
UniqueFd terminal_of_ours() {
  UniqueFd terminal(::open("/dev/tty", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  // From the background tcsetattr(3) would stop us by SIGTTOU, and the modes would be the shell's
  // by now.
  if (terminal && ::tcgetpgrp(terminal.get()) != ::getpgrp()) terminal.reset();
  return terminal;
}

}  // namespace

termios with_modes_of(const termios& before, termios now) {
  // Modes are added and never taken away: what is on now, and was not, may be another program's
  // choice.
  now.c_iflag |= before.c_iflag & (ICRNL | IXON | BRKINT);
  now.c_oflag |= before.c_oflag & (OPOST | ONLCR);
  now.c_lflag |= before.c_lflag & (ECHO | ECHOE | ECHOK | ICANON | ISIG | IEXTEN);
  std::ranges::copy(before.c_cc, now.c_cc);
  return now;
}

TerminalModes TerminalModes::now() {
  TerminalModes found;
  if (is_pipe(STDOUT_FILENO) || is_pipe(STDERR_FILENO)) return found;
  if (::isatty(STDIN_FILENO) == 0) return found;
  const auto terminal = terminal_of_ours();
  termios modes{};
  if (terminal && ::tcgetattr(terminal.get(), &modes) == 0) found.modes_ = modes;
  return found;
}

void TerminalModes::restore() const {
  if (!modes_) return;
  const auto terminal = terminal_of_ours();
  termios modes{};
  if (!terminal || ::tcgetattr(terminal.get(), &modes) != 0) return;
  const auto wanted = with_modes_of(*modes_, modes);
  // TCSANOW: others would wait for output that Ctrl+S holds up.
  if (std::memcmp(&wanted, &modes, sizeof modes) != 0) {
    ::tcsetattr(terminal.get(), TCSANOW, &wanted);
  }
}

}  // namespace elastrun::process
