// SPDX-License-Identifier: Apache-2.0
#include "system/python_stacks.hpp"

#include "core/unique_fd.hpp"

#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace elastrun::system {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

int file_of_child = -1;

void write_stacks(int) {
  for (const std::string_view piece :
       {"Thread 0x1:\n", "  File \"a.py\", line 3 in f\n\x1b[2J\n"}) {
    (void)!::write(file_of_child, piece.data(), piece.size());
  }
}

/// A process that hangs, and does this at SIGUSR1 and further signals.
struct Python {
  int file;
  pid_t pid = 0;
  UniqueFd pidfd;
  explicit Python(int descriptor, void (*at_signal)(int) = write_stacks,
                  const std::vector<int>& further = {})
      : file(descriptor) {
    pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      file_of_child = file;
      std::signal(SIGUSR1, at_signal);
      for (const int signal : further) std::signal(signal, at_signal);
      ::raise(SIGSTOP);  // so that nobody asks before
      while (true) ::pause();
    }
    pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    ::waitpid(pid, nullptr, WUNTRACED);
    ::kill(pid, SIGCONT);
  }
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;
  ~Python() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(file);
  }
  Lines ask(std::chrono::milliseconds limit, pid_t thread = 0) const {
    return ask_python_stacks(pid, pidfd.get(), {SIGUSR1, file, thread}, limit);
  }
};

TEST_CASE("python stacks: a process that hangs writes them at its signal, each time anew") {
  const Python python(::memfd_create("stacks", 0));
  for (int i = 0; i < 2; ++i) {
    CHECK(python.ask(1h) == Lines{"Thread 0x1:", "  File \"a.py\", line 3 in f", "[2J"});
  }
}

TEST_CASE("python stacks: the process is asked when its thread does not answer") {
  static bool was_asked = false;  // in the child
  const Python python(::memfd_create("stacks", 0), [](int signal) {
    if (std::exchange(was_asked, true)) write_stacks(signal);
  });
  CHECK(python.ask(1s, python.pid).size() == 3);
}

TEST_CASE("python stacks: a thread that has ended is not waited for") {
  const Python python(::memfd_create("stacks", 0));
  CHECK(python.ask(1h, ::getpid()).size() == 3);
}

TEST_CASE("python stacks: who does not answer is not waited for without a bound") {
  const Python python(::memfd_create("stacks", 0), [](int) {});
  CHECK(python.ask(50ms).empty());
}

TEST_CASE("python stacks: what has been read takes no memory of the process any more") {
  const Python python(::memfd_create("stacks", 0), [](int) {
    const std::string line(1 << 16, 'x');
    (void)!::write(file_of_child, line.data(), line.size());
  });
  struct stat info {};
  for (int i = 1; i <= 8; ++i) {
    CHECK(python.ask(1h).size() == 1);
    REQUIRE(::fstat(python.file, &info) == 0);
    CHECK(info.st_size == i << 16);
    CHECK(info.st_blocks == 0);
  }
}

// As after execve(2), which leaves the pid and takes the handler away.
TEST_CASE("python stacks: whom the signal would end is not signalled") {
  const Python python(::memfd_create("stacks", 0), SIG_DFL);
  CHECK(python.ask(1h).empty());
  CHECK(::waitpid(python.pid, nullptr, WNOHANG) == 0);
}

// Of an interpreter that ends, or of execve(2), while its thread has been asked.
TEST_CASE("python stacks: who takes its handler away meanwhile is not signalled again") {
  const Python python(::memfd_create("stacks", 0), [](int) { std::signal(SIGUSR1, SIG_DFL); });
  CHECK(python.ask(200ms, python.pid).empty());
  CHECK(::waitpid(python.pid, nullptr, WNOHANG) == 0);
}

// for signal in signal.valid_signals(): signal.signal(signal, clean_up)
TEST_CASE("python stacks: whose script has since caught every signal is not signalled") {
  const Python python(::memfd_create("stacks", 0), [](int) { ::_exit(5); },
                      {SIGRTMIN + 1, SIGRTMAX});
  CHECK(python.ask(1h).empty());
  CHECK(::waitpid(python.pid, nullptr, WNOHANG) == 0);
}

TEST_CASE(
    "python stacks: an offer that is no file in memory is not read, and nobody is signalled") {
  for (const char* path : {"/dev/zero", "/proc/self/stat", "/"}) {
    CAPTURE(path);
    const Python python(::open(path, O_RDONLY));
    CHECK(python.ask(1h).empty());
  }
  const Python closed(-1);
  CHECK(closed.ask(1h).empty());
}

}  // namespace
}  // namespace elastrun::system
