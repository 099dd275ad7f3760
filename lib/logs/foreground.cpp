// SPDX-License-Identifier: Apache-2.0
#include "logs/foreground.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <termios.h>
#include <unistd.h>

namespace elastrun::logs {
namespace {

std::string word_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (key.empty() || (word == key && file >> word)) return word;
  }
  return {};
}

/// The program that made the terminal's session, say a terminal emulator, sshd or script.
std::string made_by(int fd) {
  // The shell leads the session in an ordinary terminal, and its parent made that.
  const pid_t leader = ::tcgetsid(fd);
  if (leader <= 0) return {};
  const auto parent = word_after(fmt::format("/proc/{}/status", leader), "PPid:");
  return parent.empty() ? parent : word_after(fmt::format("/proc/{}/comm", parent), "");
}

}  // namespace

bool is_interactive(int fd) {
  // Jupyter sets that variable for its kernels, and script(1) records what is written: both would
  // keep a line that is drawn again every second as a thousand lines.
  return ::isatty(fd) == 1 && std::getenv("JPY_PARENT_PID") == nullptr && made_by(fd) != "script";
}

bool is_in_foreground(int fd, pid_t guardian) {
  const pid_t front = ::tcgetpgrp(fd);  // -1: not our controlling terminal
  if (front <= 0) return false;
  return front == ::getpgrp() || (guardian > 0 && front == ::getpgid(guardian));
}

}  // namespace elastrun::logs
