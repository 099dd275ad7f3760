// SPDX-License-Identifier: Apache-2.0
#include "system/thread_states.hpp"

#include "support/fake_files.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::system {
namespace {

using Lines = std::vector<std::string>;

/// A folder with the files of one thread, as in proc(5).
struct Proc : test::FakeFiles {
  void add(int pid, int id, const std::string& name, const std::string& file,
           const std::string& text) const {
    const auto thread = fmt::format("{}/task/{}/", pid, id);
    FakeFiles::add(
        thread + "stat",
        fmt::format("{} ({}) S 1 1 1 0 -1 4194560 0 0 0 0 1 2 0 0 20 0 1 0 345 0 0\n", id, name));
    FakeFiles::add(thread + file, text);
  }
};

TEST_CASE("thread states: a system call has its name, or its number") {
  CHECK(system_call_in(fmt::format("{} 0x7f 0x80 0x0\n", SYS_futex)) == "futex");
  CHECK(system_call_in("9999 0x0 0x0\n") == "call 9999");
  for (const char* none : {"", "running\n", "-1 0x7ffe 0x7f00\n", "nonsense"}) {
    CAPTURE(none);
    CHECK(system_call_in(none).empty());
  }
}

TEST_CASE("thread states: a kernel stack is its functions, innermost first") {
  CHECK(kernel_stack_in("[<0>] futex_wait_queue+0x60/0x90\n[<0>] do_poll [nfs]+0x1/0x2\n") ==
        Lines{"futex_wait_queue", "do_poll [nfs]"});
  CHECK(kernel_stack_in("").empty());
  CHECK(kernel_stack_in("no function\n\n").empty());
}

TEST_CASE("thread states: what procfs does not tell is left out") {
  const Proc proc;
  proc.add(7, 7, "python3", "wchan", "0");
  proc.add(7, 8, "odd ) name", "wchan", "do_wait");
  const auto threads = read_threads(7, 9, proc.root());
  REQUIRE(threads.size() == 2);
  CHECK(threads[0] == ThreadState{7, "python3", 'S', {}, {}, {}});
  CHECK(threads[1] == ThreadState{8, "odd ) name", 'S', "do_wait", {}, {}});
  CHECK(read_threads(7, 1, proc.root()).size() == 1);
  CHECK(read_threads(99, 9, proc.root()).empty());
}

TEST_CASE("thread states: threads that do the same are one paragraph, the main thread's first") {
  std::vector<ThreadState> threads{{10, "python3", 'S', "", "read", {"pipe_read", "vfs_read"}}};
  for (int id = 11; id < 21; ++id) {
    threads.push_back({id, "worker", 'S', "futex_wait", "futex", {}});
  }
  threads.push_back({30, "busy", 'R', "", "", {}});
  CHECK(thread_lines(threads) ==
        Lines{"thread 10 (python3, main): sleeping, system call read", "    pipe_read",
              "    vfs_read",
              "threads 11, 12, 13, 14, 15, 16, 17, 18 and 2 more (worker): sleeping, system call "
              "futex, waits in futex_wait",
              "thread 30 (busy): running"});
  CHECK(thread_lines({}).empty());
}

TEST_CASE("thread states: those of a real process") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  const auto threads = read_threads(child);
  REQUIRE(threads.size() == 1);
  CHECK(threads[0].id == child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace elastrun::system
