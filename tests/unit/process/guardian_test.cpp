// SPDX-License-Identifier: Apache-2.0
#include "process/guardian.hpp"

#include "core/unique_fd.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"
#include "process/spawn.hpp"
#include "support/children.hpp"
#include "support/scratch.hpp"

#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;
using Paths = std::vector<std::string>;

namespace {

sigset_t block_all() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  return all;
}

// A process that splits and plays `part` as the agent. Its pid is the guardian's.
pid_t play(
    const std::function<int(guardian::Agent&)>& part, const std::function<void()>& before = [] {}) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    // doctest's own handlers would turn the deaths that are tested into reports of a crash.
    for (const int signal : {SIGINT, SIGILL, SIGFPE, SIGSEGV, SIGTERM, SIGABRT}) {
      ::signal(signal, SIG_DFL);
    }
    before();
    auto agent = guardian::split();
    ::_exit(part(agent));
  }
  return pid;
}

// The same with two processes that were forked for it, as a caller does that forks its workers.
// `late`: the guardian's part begins when the agent has ended.
pid_t play_pair(const std::function<int(guardian::Agent&)>& part, bool late = false) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const int signal : {SIGINT, SIGSEGV, SIGTERM, SIGABRT}) ::signal(signal, SIG_DFL);
    block_all();
    const int board = ::memfd_create("board", 0);
    const pid_t guardian = ::getpid();
    const pid_t forked = ::fork();
    const pid_t agent = forked == 0 ? ::getpid() : forked;
    siginfo_t info{};
    if (late && forked > 0) ::waitid(P_PID, static_cast<id_t>(forked), &info, WEXITED | WNOWAIT);
    const auto pair = std::to_string(board) + " " + std::to_string(guardian) + " ";
    ::setenv(guardian::kPair, (pair + std::to_string(agent)).c_str(), 1);
    auto mine = guardian::split();
    const bool kept = ::fcntl(board, F_GETFD) >= 0 || std::getenv(guardian::kPair) != nullptr;
    ::_exit(forked == 0 && !kept ? part(mine) : 99);
  }
  return pid;
}

ExitStatus wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return ExitStatus::from_wait(status);
}

void say(int fd, const std::string& text) {
  const std::string line = text + "\n";
  if (::write(fd, line.data(), line.size()) < 0) std::abort();
}

// As what a program had started before it became this one; its number is said.
void start_old(Ear& ear) {
  const pid_t old = ::fork();
  if (old == 0) {
    ear.close_mouth();
    while (true) ::pause();
  }
  say(ear.mouth(), std::to_string(old));
}

// As the agent: writes down each signal with its sender until SIGTERM comes.
int write_down_signals(int fd) {
  const sigset_t all = block_all();
  say(fd, "ready");
  for (int signal = 0; signal != SIGTERM;) {
    siginfo_t info{};
    signal = ::sigwaitinfo(&all, &info);
    say(fd, signal_name(signal) + " from " + std::to_string(info.si_pid));
  }
  return 0;
}

// As the agent: starts the stub with these steps and waits for a line before it says "up".
struct Started {
  Nursery nursery;
  std::unique_ptr<Nursery::Watched> worker;
  Started(std::vector<std::string> steps, int fd) {
    worker = std::move(*nursery.start(nursery.stub(std::move(steps), fd)));
  }
};

}  // namespace

TEST_CASE("guardian: a signal reaches the agent with the pid of its true sender") {
  Ear ear;
  const pid_t pid = play([&](auto&) { return write_down_signals(ear.mouth()); });
  CHECK(ear.line() == "ready");
  const std::string me = std::to_string(::getpid());
  for (const int signal : {SIGUSR1, SIGHUP, SIGQUIT, SIGWINCH, SIGRTMIN + 2, SIGSEGV}) {
    ::kill(pid, signal);
    CHECK(ear.line() == signal_name(signal) + " from " + me);
  }
  ::kill(pid, SIGTERM);
  CHECK(ear.rest() == "SIGTERM from " + me + "\n");
  CHECK(wait_for(pid) == ExitStatus::exited(0));
}

TEST_CASE("guardian: signals blocked at the start are open in the agent") {
  const pid_t pid = play(
      [&](auto&) {
        sigset_t mask;
        ::sigprocmask(SIG_SETMASK, nullptr, &mask);
        return ::sigisemptyset(&mask) == 1 ? 0 : 1;
      },
      [] { block_all(); });
  CHECK(wait_for(pid) == ExitStatus::exited(0));
}

TEST_CASE("guardian: Ctrl+Z stops it alone, unless the agent wants to have it") {
  for (const bool wanted : {false, true}) {
    CAPTURE(wanted);
    Ear ear;
    const pid_t pid = play(
        [&](guardian::Agent& agent) {
          if (wanted) agent.relay({SIGTERM, SIGTSTP});
          return write_down_signals(ear.mouth());
        },
        [] { ::setpgid(0, 0); });  // a group that a shell could continue can be stopped
    const std::string me = std::to_string(::getpid());
    CHECK(ear.line() == "ready");
    ::kill(pid, SIGTSTP);
    int status = 0;
    if (wanted) {
      CHECK(ear.line() == "SIGTSTP from " + me);
    } else {
      CHECK(::waitpid(pid, &status, WUNTRACED) == pid);
      CHECK(WIFSTOPPED(status));
      ::kill(pid, SIGCONT);
      CHECK(ear.line() == "SIGCONT from " + me);
    }
    ::kill(pid, SIGTERM);
    CHECK(ear.rest() == "SIGTERM from " + me + "\n");
    CHECK(wait_for(pid) == ExitStatus::exited(0));
  }
}

TEST_CASE("guardian: Ctrl+C on the terminal reaches the agent exactly once") {
  Ear ear;
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    auto agent = guardian::split();
    ::_exit(write_down_signals(ear.mouth()));
  }
  CHECK(ear.line() == "ready");
  CHECK(::write(terminal, "\x03", 1) == 1);
  CHECK(ear.line() == "SIGINT from 0");  // 0: no process sent it
  ::kill(pid, SIGTERM);
  CHECK(ear.rest() == "SIGTERM from " + std::to_string(::getpid()) + "\n");
  CHECK(wait_for(pid) == ExitStatus::exited(0));
  ::close(terminal);
}

TEST_CASE("guardian: Ctrl+C comes from the kernel also where there were children before") {
  Ear ear;
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    if (::fork() == 0) {  // in a group of its own: the Ctrl+C is not for it
      ear.close_mouth();
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) ::pause();
    }
    auto agent = guardian::split();
    const sigset_t all = block_all();
    say(ear.mouth(), "ready");
    siginfo_t info{};
    ::sigwaitinfo(&all, &info);
    ::_exit(info.si_signo == SIGINT && info.si_code == process::kFromKernel ? 0 : 1);
  }
  CHECK(ear.line() == "ready");
  CHECK(::write(terminal, "\x03", 1) == 1);
  CHECK(wait_for(pid) == ExitStatus::exited(0));
  ::close(terminal);
}

TEST_CASE("guardian: what the agent asked to be removed is removed after its death") {
  const Scratch scratch;
  const std::filesystem::path root = scratch.path;
  for (const char* folder : {"gone", "gone/deep", "forgotten", "linked"}) {
    std::filesystem::create_directory(root / folder);
  }
  std::filesystem::create_directory_symlink(root / "linked", root / "gone" / "link");
  const pid_t pid = play([&](guardian::Agent& agent) {
    if (!agent.remember((root / "forgotten").native())) return 1;
    if (!agent.remember((root / "gone").native())) return 1;
    if (agent.remember(std::string(2000, 'x'))) return 1;
    agent.forget((root / "forgotten").native());
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  CHECK(wait_for(pid).by_signal(SIGKILL));
  CHECK_FALSE(std::filesystem::exists(root / "gone"));
  CHECK(std::filesystem::exists(root / "forgotten"));
  CHECK(std::filesystem::exists(root / "linked"));
}

TEST_CASE("guardian: two that were forked ahead take their places") {
  Ear ear;
  const pid_t pid = play_pair([&](auto&) { return write_down_signals(ear.mouth()); });
  CHECK(ear.line() == "ready");
  ::kill(pid, SIGUSR1);
  CHECK(ear.line() == "SIGUSR1 from " + std::to_string(::getpid()));
  ::kill(pid, SIGTERM);
  CHECK(ear.rest().starts_with("SIGTERM from "));
  CHECK(wait_for(pid) == ExitStatus::exited(0));
  const Scratch scratch;
  const pid_t other = play_pair([&](guardian::Agent& agent) {
    sigset_t mask;
    ::sigprocmask(SIG_SETMASK, nullptr, &mask);
    const bool sound = agent.guardian_pid() == ::getppid() && agent.guardian_fd() >= 0 &&
                       ::getpgrp() == ::getpid() && ::sigisemptyset(&mask) == 1;
    // Nothing of an orphan's has to be told to the guardian: it is an ancestor.
    // It ends by itself where this agent was gone before its guardian took orphans in.
    if (::fork() == 0) ::setsid(), ::alarm(20), ::pause();
    if (sound && agent.remember(scratch.path)) ::kill(::getpid(), SIGABRT);
    return 1;
  });
  CHECK(wait_for(other).by_signal(SIGABRT));
  CHECK(wait_for(play_pair([](auto&) { return 4; }, true)) == ExitStatus::exited(4));
  CHECK_FALSE(std::filesystem::exists(scratch.path));
}

TEST_CASE("guardian: a variable that names no pair of ours is as none") {
  for (const char* value : {"", "x", "-1", "3 4", "3 1 1", "-1 99999999999 2", "0 0 0", "4 P P",
                            "4 P 1", "4 0 P", "1 -1 -1"}) {
    CAPTURE(value);
    const pid_t pid = play(
        [](guardian::Agent& agent) {
          const bool normal = agent.guardian_pid() == ::getppid();
          return normal && std::getenv(guardian::kPair) == nullptr ? 0 : 1;
        },
        [value] {
          std::string text = value;
          for (auto at = text.find('P'); at != std::string::npos; at = text.find('P')) {
            text.replace(at, 1, std::to_string(::getpid()));
          }
          ::setenv(guardian::kPair, text.c_str(), 1);
        });
    CHECK(wait_for(pid) == ExitStatus::exited(0));
  }
}

TEST_CASE("guardian: at most eight paths are remembered, and a forgotten one makes room") {
  const pid_t pid = play([&](guardian::Agent& agent) {
    for (int index = 0; index < 8; ++index) {
      if (!agent.remember("/nowhere/" + std::to_string(index))) return 1;
    }
    if (agent.remember("/nowhere/8")) return 2;
    agent.forget("/nowhere/3");
    return agent.remember("/nowhere/8") ? 0 : 3;
  });
  CHECK(wait_for(pid) == ExitStatus::exited(0));
}

TEST_CASE("guardian: closed standard streams are replaced by the null device") {
  const pid_t pid = play(
      [&](auto&) {
        const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        return next.get() > 2 ? 0 : 1;
      },
      [] {
        for (int fd = 0; fd <= 2; ++fd) ::close(fd);
      });
  CHECK(wait_for(pid) == ExitStatus::exited(0));
}

TEST_CASE("guardian: children from before the split are left alone") {
  Ear ear;
  const pid_t pid = play(
      [&](auto&) {
        Started worker({"child=setsid,double,bare"}, ear.mouth());
        ear.close_mouth();
        worker.nursery.wait(*worker.worker);
        ::kill(::getpid(), SIGKILL);
        return 0;
      },
      [&] { start_old(ear); });
  const auto old = static_cast<pid_t>(std::stol(ear.line()));
  ear.rest();
  CHECK(wait_for(pid).by_signal(SIGKILL));
  CHECK(::kill(old, 0) == 0);
  ::kill(old, SIGKILL);
}

TEST_CASE("guardian: children that are not the job's leave no zombies behind while it works") {
  Ear ear;
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  const pid_t pid = play(
      [&](auto&) {
        std::uint64_t one = 0;
        return ::read(over.get(), &one, sizeof one) == sizeof one ? 5 : 6;
      },
      [&] { start_old(ear); });
  const auto old = static_cast<pid_t>(std::stol(ear.line()));
  const UniqueFd held(static_cast<int>(::syscall(SYS_pidfd_open, old, 0)));
  ::kill(old, SIGKILL);
  pollfd ended{held.get(), POLLIN, 0};
  CHECK(::poll(&ended, 1, 60'000) == 1);
  // It is a zombie now, for a moment.
  for (int i = 0; i < 6000 && ::kill(old, 0) == 0; ++i) ::poll(nullptr, 0, 10);
  CHECK(::kill(old, 0) != 0);
  const std::uint64_t one = 1;
  CHECK(::write(over.get(), &one, sizeof one) == sizeof one);
  CHECK(wait_for(pid) == ExitStatus::exited(5));
}

TEST_CASE("guardian: the agent has its own group, and is set up to write what and where it can") {
  const pid_t pid = play([&](auto&) {
    for (const int signal : {SIGPIPE, SIGTTOU, SIGXFSZ}) {
      struct sigaction action {};
      ::sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) return signal;
    }
    return ::getpgrp() == ::getpid() && ::getsid(0) != ::getpid() ? 0 : 1;
  });
  CHECK(wait_for(pid) == ExitStatus::exited(0));
}

namespace {

/// In a process of its own that has these signals blocked, as the guardian has; its output.
std::string apart(const std::function<Paths()>& removal) {
  Ear ear;
  const pid_t pid = ::fork();
  if (pid == 0) {
    block_all();
    std::string text;
    for (const auto& path : removal()) text += path + "\n";
    (void)!::write(ear.mouth(), text.data(), text.size());
    ::_exit(0);
  }
  const auto text = ear.rest();  // also the end of all that have the pipe
  ::waitpid(pid, nullptr, 0);
  return text;
}

void hang_at_stuck(const std::string& path) {
  while (path.ends_with("stuck")) ::pause();
}

}  // namespace

TEST_CASE("removal: what answers is removed with all below, and links are not followed") {
  const Scratch scratch;
  const std::filesystem::path root = scratch.path;
  for (const char* folder : {"gone", "gone/deep", "linked"}) {
    std::filesystem::create_directory(root / folder);
  }
  std::filesystem::create_directory_symlink(root / "linked", root / "gone" / "link");
  std::ofstream(root / "file") << "text";
  CHECK(apart([&] {
          return remove_within_bound({root / "gone", root / "none", root / "file"});
        }).empty());
  CHECK_FALSE(std::filesystem::exists(root / "gone"));
  CHECK_FALSE(std::filesystem::exists(root / "file"));
  CHECK(std::filesystem::exists(root / "linked"));
}

TEST_CASE("removal: one that hangs is waited for so long, and named with those behind it") {
  CHECK(apart([] {
          return remove_within_bound({"/none", "/stuck", "/behind"}, hang_at_stuck);
        }) == "/stuck\n/behind\n");
}

TEST_CASE(
    "removal: a signal shortens the wait for one that hangs, and costs nobody else anything") {
  CHECK(apart([] {
          ::kill(::getpid(), SIGTERM);
          return remove_within_bound({"/none", "/stuck"}, hang_at_stuck);
        }) == "/stuck\n");
}

TEST_CASE("removal: what a killed child has left, the next one removes") {
  const Scratch scratch;
  const std::filesystem::path root = scratch.path;
  std::ofstream(root / "file") << "text";
  const auto killed_at_the_first_file = [](const std::string& path) {
    const bool first = std::filesystem::exists(path);
    remove_path(path);
    if (first) ::raise(SIGKILL);
  };
  CHECK(apart([&] {
          return remove_within_bound({root / "file", root}, killed_at_the_first_file);
        }).empty());
  CHECK_FALSE(std::filesystem::exists(root));
}

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
    block_all();
    ::dup2(writer.get(), STDERR_FILENO);
    process::say_within_bound("a line\n");
    ::_exit(0);
  }
  CHECK(wait_for(pid) == ExitStatus::exited(0));
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
    block_all();
    ::kill(::getpid(), SIGTERM);
    const auto hang = [] {
      while (true) ::pause();
    };
    const bool made = process::do_in_child(hang, {std::chrono::hours(1), Duration::zero()});
    sigset_t pending;
    ::sigpending(&pending);
    ::_exit(made && ::sigismember(&pending, SIGTERM) == 0 ? 0 : 1);
  }
  CHECK(wait_for(pid) == ExitStatus::exited(0));
}
