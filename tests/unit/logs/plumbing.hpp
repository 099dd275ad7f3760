// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/unique_fd.hpp"
#include "support/fake_clock.hpp"
#include "support/loop.hpp"
#include "support/scratch.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

/// Vocabulary of the wired tests of logs: pipes, terminals, files.
namespace plumbing {

using elastrun::UniqueFd;
using elastrun::test::content;
using elastrun::test::FakeClock;
using elastrun::test::run_ready;
using elastrun::test::run_until;
using elastrun::test::Scratch;

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  UniqueFd reader, writer;
};

/// A terminal with us in the place of the screen.
struct Terminal {
  Terminal() {
    int master = -1, slave = -1;
    winsize size{24, 60, 0, 0};
    REQUIRE(::openpty(&master, &slave, nullptr, nullptr, &size) == 0);
    screen.reset(master);
    side.reset(slave);
  }
  UniqueFd screen, side;
};

inline UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

inline void say(int fd, std::string_view text) {
  REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

/// What can be read at once, without waiting.
inline std::string take(int fd) {
  std::string text;
  char buffer[65536];
  pollfd entry{fd, POLLIN, 0};
  while (::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0) {
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size <= 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace plumbing
