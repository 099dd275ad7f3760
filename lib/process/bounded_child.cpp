// SPDX-License-Identifier: Apache-2.0
#include "process/bounded_child.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

using Steady = std::chrono::steady_clock;

timespec until_spec(Steady::time_point until) {
  using namespace std::chrono;
  const auto left = std::max(until - Steady::now(), Steady::duration::zero());
  const auto whole = duration_cast<seconds>(left);
  return {whole.count(), duration_cast<nanoseconds>(left - whole).count()};
}

/// False if it has not ended in time.
bool await(pid_t child, ChildBound bound) {
  sigset_t awaited;
  ::sigemptyset(&awaited);
  ::sigaddset(&awaited, SIGCHLD);
  if (bound.after_signal < bound.limit) {
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::sigaddset(&awaited, signal);
  }
  const auto began = Steady::now();
  auto until = began + bound.limit;
  while (::waitpid(child, nullptr, WNOHANG) == 0) {
    if (Steady::now() >= until) return false;
    const auto left = until_spec(until);
    // Our callers have these blocked: one that comes between waitpid(2) and here is pending, and
    // not lost.
    const int signal = ::sigtimedwait(&awaited, nullptr, &left);
    if (signal > 0 && signal != SIGCHLD) until = std::min(until, began + bound.after_signal);
  }
  return true;
}

/// A terminal or a pipe that has room; not what a file system keeps.
bool takes_at_once(int fd) {
  struct stat info {};
  pollfd room{fd, POLLOUT, 0};
  return ::fstat(fd, &info) == 0 && !S_ISREG(info.st_mode) && ::poll(&room, 1, 0) == 1;
}

}  // namespace

bool do_in_child(const std::function<void()>& work, ChildBound bound) {
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    // The parent may have died before that call; the signal then never comes (prctl(2)).
    if (::getppid() != self) ::_exit(EXIT_FAILURE);
    work();
    // Not exit(3): buffers and handlers are the parent's.
    ::_exit(EXIT_SUCCESS);
  }
  // Not waited for after that: what hangs in a file system does not end by SIGKILL either.
  if (child > 0 && !await(child, bound)) ::kill(child, SIGKILL);
  return child > 0;
}

void say_within_bound(const std::string& line) {
  const auto write_it = [&line] {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  };
  constexpr ChildBound kBound{std::chrono::seconds(1), std::chrono::seconds(1)};
  if (!do_in_child(write_it, kBound) && takes_at_once(STDERR_FILENO)) write_it();
}

}  // namespace elastrun::process
