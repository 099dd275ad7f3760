// SPDX-License-Identifier: Apache-2.0
#include "system/process_stacks.hpp"

#include "core/unique_fd.hpp"
#include "support/fake_files.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
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
    return ask_python_stacks({{pid, pidfd.get(), {SIGUSR1, file, thread}}}, limit).front();
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

TEST_CASE("flight recorder: its pipe and dump are where torch's variables say") {
  using Names = std::vector<std::string>;
  CHECK(system::flight_recorder_of({"HOME=/home/ada"}, 3) ==
        FlightRecorder{{}, "/home/ada/.cache/torch/comm_lib_trace_rank_3"});
  CHECK(system::flight_recorder_of({"XDG_CACHE_HOME=/c", "HOME=/h"}, 3).dump ==
        "/c/torch/comm_lib_trace_rank_3");
  const auto recorder = system::flight_recorder_of(
      {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/old_", "TORCH_FR_DUMP_TEMP_FILE=/new_",
       "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/pipe_", "TORCH_FR_DUMP_TEMP_FILE_X=/no",
       "TORCH_FR_DEBUG_INFO_PIPE_FILE=/xccl_"},
      12);
  CHECK(recorder.pipes == Names{"/pipe_12.pipe", "/xccl_12.pipe", "/new_12.pipe", "/old_12.pipe"});
  CHECK(recorder.dump == "/new_12");
}

TEST_CASE("flight recorder: only a pipe that somebody reads is written to") {
  test::FakeFiles files;
  const auto path = [&](const char* name) { return files.root() + "/" + name; };
  REQUIRE(::mkfifo(path("read.pipe").c_str(), 0600) == 0);
  REQUIRE(::mkfifo(path("alone.pipe").c_str(), 0600) == 0);
  std::ofstream(path("file.pipe")) << "kept";
  const UniqueFd reader(::open(path("read.pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  CHECK(system::find_dumps({{{path("absent"), path("read.pipe")}, "/dump0"},
                            {{path("alone.pipe")}, "/dump1"},
                            {{path("file.pipe")}, "/dump2"},
                            {{}, "/dump3"}},
                           {}) == std::vector<std::string>{"/dump0"});
  char byte = 0;
  CHECK(::read(reader.get(), &byte, 1) == 1);
  std::string text;
  std::ifstream(path("file.pipe")) >> text;
  CHECK(text == "kept");
}

TEST_CASE("flight recorder: a dump that torch has written by itself since then is found") {
  using Names = std::vector<std::string>;
  const test::FakeFiles files;
  const auto path = [&](const char* name) { return files.root() + "/" + name; };
  const auto now = std::chrono::system_clock::now();
  files.add("new", "dump");
  files.add("empty");
  files.add("folder/x");
  const std::vector<FlightRecorder> recorders{
      {{}, path("new")}, {{}, path("empty")}, {{}, path("folder")}, {{}, path("absent")}};
  CHECK(system::find_dumps(recorders, now) == Names{path("new")});
  CHECK(system::find_dumps(recorders, now + std::chrono::minutes(1)).empty());  // of an earlier run
}

TEST_CASE("flight recorder: a process has the environment that it was started with") {
  const auto own = system::environment_of(::getpid());
  const std::string path = std::string("PATH=") + std::getenv("PATH");
  CHECK(std::ranges::find(own, path) != own.end());
  CHECK(system::environment_of(-1).empty());
}

}  // namespace elastrun::system
