// SPDX-License-Identifier: Apache-2.0
#include "process/bounded_child.hpp"

#include "core/unique_fd.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;

namespace {

/// What is in a pipe after a process that has all signals blocked, as the guardian has, has said a
/// line into it. It has ended, or this waits for ever.
std::string said_into(int full_up_to) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  REQUIRE(::fcntl(writer.get(), F_SETPIPE_SZ, 4096) >= 4096);
  const std::string before(static_cast<std::size_t>(full_up_to), '.');
  REQUIRE(::write(writer.get(), before.data(), before.size()) == full_up_to);
  REQUIRE(::fcntl(writer.get(), F_SETFL, O_WRONLY) == 0);  // the reader's own are not concerned
  const pid_t pid = ::fork();
  if (pid == 0) {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    ::dup2(writer.get(), STDERR_FILENO);
    process::say_within_bound("a line\n");
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  writer.reset();
  std::string text(8192, '\0');
  const auto size = ::read(reader.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text.substr(before.size());
}

}  // namespace

TEST_CASE("bounded child: a line is said where there is room") {
  CHECK(said_into(10) == "a line\n");
}

TEST_CASE("bounded child: who takes nothing holds back nobody who has a last word") {
  CHECK(said_into(4096).empty());
}

TEST_CASE("bounded child: the signal that asks for an end shortens the time, and is taken") {
  const pid_t pid = ::fork();
  if (pid == 0) {
    sigset_t all, pending;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    ::kill(::getpid(), SIGTERM);
    const auto hang = [] {
      while (true) ::pause();
    };
    const bool made = process::do_in_child(hang, {std::chrono::hours(1), Duration::zero()});
    ::sigpending(&pending);
    ::_exit(made && ::sigismember(&pending, SIGTERM) == 0 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
}
