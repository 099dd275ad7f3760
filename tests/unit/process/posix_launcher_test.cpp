// SPDX-License-Identifier: Apache-2.0
#include "process/posix_launcher.hpp"

#include "process/cgroup.hpp"
#include "process/process_table.hpp"
#include "process/spawn.hpp"
#include "support/children.hpp"
#include "support/scratch.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;

namespace {

bool no_child_at_all() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
}

std::string text_of_failure(Nursery& nursery, const LaunchRequest& request) {
  const auto started = nursery.start(request);
  REQUIRE_FALSE(started);
  CHECK(started.error().code == Code::Spawn);
  return started.error().text;
}

struct Folder : Scratch {
  std::string file(const std::string& name, const std::string& text, mode_t mode) const {
    add(name, text);
    ::chmod((*this / name).c_str(), mode);
    return *this / name;
  }
};

/// Another process that traces `pid` as strace(1) does, until something can be read from `let_go`.
pid_t start_tracer(pid_t traced, Ear& ready, int let_go) {
  const pid_t tracer = ::fork();
  if (tracer != 0) return tracer;
  const bool holds = ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0;
  char byte = holds ? 'y' : 'n';
  const std::array<char, 2> line{byte, '\n'};
  if (::write(ready.mouth(), line.data(), line.size()) < 0) ::_exit(1);
  if (::read(let_go, &byte, 1) < 0) ::_exit(1);
  ::_exit(0);  // the end of a tracer lets go of all
}

}  // namespace

TEST_CASE("launcher: how a traced child ended is known when its tracer lets go") {
  Nursery nursery;
  Ear ear;
  Folder folder;
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const auto worker = nursery.start(nursery.stub({"wait=" + folder / "go", "exit=3"}));
  REQUIRE(worker);
  const pid_t tracer = start_tracer((*worker)->child->pid(), ear, pipe[0]);
  const bool traced = ear.line() == "y";
  if (!traced) MESSAGE("not tested: this system lets nobody trace");
  nursery.io.poll();
  folder.file("go", "", 0600);
  if (traced) {
    pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, (*worker)->child->pid(), 0)), POLLIN,
                 0};
    CHECK(::poll(&ended, 1, 60'000) == 1);
    ::close(ended.fd);
    nursery.io.run_one();  // it looks, and sees a dead child without an exit status
    CHECK_FALSE((*worker)->exit.has_value());
  }
  CHECK(::write(pipe[1], "x", 1) == 1);
  CHECK(nursery.wait(**worker).status == ExitStatus::exited(3));
  ::waitpid(tracer, nullptr, 0);
  for (const int fd : pipe) ::close(fd);
}

TEST_CASE("launcher: a group that has outlived its child's object dies of no later event") {
  Ear ear;
  const pid_t group = ::fork();
  if (group == 0) {
    ::setpgid(0, 0);
    const std::string said = "up\n";
    if (::write(ear.mouth(), said.data(), said.size()) < 0) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  CHECK(ear.line() == "up");
  {
    GroupDeathSignal signal;
    signal.arm(group);
    CHECK(signal.armed());
  }
  siginfo_t info{};
  CHECK(::waitid(P_PID, static_cast<id_t>(group), &info, WEXITED | WNOHANG | WNOWAIT) == 0);
  CHECK(info.si_pid == 0);
  ::kill(group, SIGKILL);
  ::waitpid(group, nullptr, 0);
}

TEST_CASE("launcher: streams may be given on descriptors that are targets themselves") {
  Ear first, second;
  const pid_t pid = ::fork();
  if (pid == 0) {  // with stdout and stderr of the child on our 2 and 1: they have to be swapped
    ::dup2(first.mouth(), 1);
    ::dup2(second.mouth(), 2);
    Nursery nursery;
    auto request = nursery.stub({"say=out", "complain=err"});
    request.stdout_fd = 2;
    request.stderr_fd = 1;
    const auto worker = nursery.start(request);
    nursery.wait(**worker);
    ::_exit(0);
  }
  CHECK(second.rest() == "out\n");
  CHECK(first.rest() == "err\n");
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("launcher: programs are looked up in the PATH of the child, not in ours") {
  Nursery nursery;
  Folder folder;
  folder.file("greet", "#!/bin/sh\necho hello $1\n", 0755);
  Ear ear;
  LaunchRequest request;
  request.argv = {"greet", "you"};
  request.environment = {"PATH=/nowhere:" + folder.path};
  request.stdout_fd = ear.mouth();
  const auto worker = nursery.start(request);
  REQUIRE(worker);
  CHECK(ear.rest() == "hello you\n");
  request.stdout_fd = -1;
  request.environment = {"PATH=/nowhere"};
  CHECK(text_of_failure(nursery, request).starts_with("cannot start greet: No such file or dir"));
  request.environment = {"PATH=:/nowhere"};  // an empty element is the child's directory
  request.directory = folder.path;
  request.argv = {"greet", "again"};
  Ear second;
  request.stdout_fd = second.mouth();
  const auto here = nursery.start(request);
  REQUIRE(here);
  CHECK(second.rest() == "hello again\n");
}

TEST_CASE("launcher: what cannot be started is explained, and nothing is left") {
  Nursery nursery;
  Folder folder;
  const auto failure = [&](const std::string& program) {
    LaunchRequest request;
    request.argv = {program};
    return text_of_failure(nursery, request);
  };
  CHECK(failure("./x") == "cannot start ./x: No such file or directory");
  CHECK(failure(folder.file("plain", "x", 0644)).find("Permission denied") != std::string::npos);
  CHECK(failure(folder.path).find("Permission denied") != std::string::npos);
  CHECK(failure(folder.file("odd", "garbage\n", 0755)).find("Exec format error") !=
        std::string::npos);
  CHECK(failure(folder.file("bad", "#!/no/such -x\n", 0755)).find("asks for /no/such, which is") !=
        std::string::npos);
  CHECK(failure("") == "cannot start an empty program name");
  CHECK(no_child_at_all());
}

TEST_CASE("launcher: a missing directory and impossible CPUs are named") {
  Nursery nursery;
  auto request = nursery.stub({"exit=0"});
  request.directory = "/no/such/place";
  CHECK(text_of_failure(nursery, request).find("cannot enter the directory /no/such/place: No") !=
        std::string::npos);
  request.directory.clear();
  request.cpus = {5000};
  CHECK(text_of_failure(nursery, request).find("cannot bind it to CPUs 5000: Invalid argument") !=
        std::string::npos);
  CHECK(no_child_at_all());
}

TEST_CASE("launcher: two hundred children leak neither descriptor nor zombie") {
  Nursery nursery;
  nursery.wait(**nursery.start(nursery.stub({"exit=0"})));
  const int before = open_descriptors();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Nursery::Watched>> workers;
    for (int index = 0; index < 10; ++index) {
      auto worker = nursery.start(nursery.stub({"exit=" + std::to_string(index)}));
      REQUIRE(worker);
      workers.push_back(std::move(*worker));
    }
    for (int index = 0; index < 10; ++index) {
      CHECK(nursery.wait(*workers[static_cast<std::size_t>(index)]).status ==
            ExitStatus::exited(index));
    }
  }
  CHECK(open_descriptors() == before);
  CHECK(nursery.launcher->children().empty());
  CHECK(no_child_at_all());
}

TEST_CASE("launcher: the group can be signalled after its leader has ended") {
  Nursery nursery;
  Ear ear;
  const auto worker = nursery.start(nursery.stub({"child", "wait=/proc/self/stat"}, ear.mouth()));
  REQUIRE(worker);
  Child& child = *(*worker)->child;
  nursery.wait(**worker);
  CHECK(ear.line().starts_with("child "));
  CHECK(child.ended());
  CHECK(child.group_alive());
  CHECK(nursery.launcher->children() == std::vector{child.pid()});
  CHECK(::kill(child.pid(), 0) == 0);  // still a zombie: its number belongs to us
  child.signal_group(SIGKILL);
  CHECK(ear.rest().empty());
}

TEST_CASE("launcher: a group without live members is known to be empty") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  Nursery nursery;
  Ear other_ear;
  const auto worker = nursery.start(nursery.stub({"exit=1"}));
  const auto other = nursery.start(nursery.stub({"say=up", "stay"}, other_ear.mouth()));
  REQUIRE(worker);
  REQUIRE(other);
  nursery.wait(**worker);
  CHECK(other_ear.line() == "up");
  CHECK_FALSE((*worker)->child->group_alive());  // by the process table: another child lives
  CHECK((*other)->child->group_alive());
  (*other)->child->signal_group(SIGKILL);
  nursery.wait(**other);
  CHECK_FALSE((*worker)->child->group_alive());  // by the system call alone
  CHECK_FALSE((*other)->child->group_alive());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

TEST_CASE("launcher: a destroyed child takes its group along and is never reported") {
  Nursery nursery;
  Ear ear;
  bool reported = false;
  auto child = nursery.launcher->start(nursery.stub({"child=deaf", "stay"}, ear.mouth()),
                                       [&](const Exit&) { reported = true; });
  REQUIRE(child);
  CHECK(ear.line().starts_with("child "));
  child->reset();
  CHECK(ear.rest().empty());
  nursery.io.poll();
  CHECK_FALSE(reported);
  CHECK(nursery.launcher->children().empty());
}

TEST_CASE("launcher: a child that ended unseen is not reported after its destruction") {
  Nursery nursery;
  Ear ear;
  bool reported = false;
  auto child = nursery.launcher->start(nursery.stub({"exit=0"}, ear.mouth()),
                                       [&](const Exit&) { reported = true; });
  REQUIRE(child);
  CHECK(ear.rest().empty());
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>((*child)->pid()), &info, WEXITED | WNOWAIT);
  child->reset();
  nursery.io.run();
  CHECK_FALSE(reported);
}

TEST_CASE("launcher: a child may be destroyed inside its own report") {
  Nursery nursery;
  std::unique_ptr<Child> child;
  bool reported = false;
  auto started = nursery.launcher->start(nursery.stub({"exit=0"}), [&](const Exit&) {
    child.reset();
    reported = true;
  });
  REQUIRE(started);
  child = std::move(*started);
  nursery.io.run();
  CHECK(reported);
}

TEST_CASE("launcher: the peak of a child's memory is reported") {
  Nursery nursery;
  const auto worker = nursery.start(nursery.stub({"memory=40"}));
  REQUIRE(worker);
  CHECK(nursery.wait(**worker).peak_rss_bytes >= 40LL << 20);
}

namespace {

constexpr int kNoFilter = 64;

/// From now on this system call is not made for this process: it fails with `number`, or is
/// answered with 0 if that is 0.
bool refuse(std::uint32_t call, std::uint32_t number) {
  std::array<sock_filter, 4> code{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | number),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{code.size(), code.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// By an environment that is too large, which only the child is told.
Result<std::unique_ptr<Nursery::Watched>> start_in_vain(Nursery& nursery) {
  auto request = nursery.stub({"exit=0"});
  request.environment = {"HUGE=" + std::string(200'000, 'x')};
  return nursery.start(request);
}

/// The exit code of a process: what went wrong, as bits.
int start_without_clone3() {  // as in the containers of older versions
  if (!refuse(SYS_clone3, EPERM)) return kNoFilter;
  Nursery nursery;
  const std::string name = "elastrun-test-" + std::to_string(::getpid());
  const auto cgroup = Cgroup::make(own_cgroup_directory().value_or("/none"), name);
  Ear ear;
  LaunchRequest request;
  request.argv = {"/bin/sh", "-c", "grep ^0: /proc/self/cgroup"};
  request.stdout_fd = ear.mouth();
  if (cgroup) request.cgroup_fd = cgroup->fd();
  const auto worker = nursery.start(request);
  const bool started = worker && nursery.wait(**worker).status == ExitStatus::exited(0);
  const bool inside = !cgroup || ear.line().ends_with(name);
  const bool refused = !start_in_vain(nursery);
  return (started ? 0 : 1) | (inside ? 0 : 2) | (refused ? 0 : 4);
}

/// The exit code of a process whose child sees another parent, as if this one had ended meanwhile.
int start_and_be_gone() {
  if (!refuse(SYS_getppid, 0)) return kNoFilter;
  Nursery nursery;
  const auto request = nursery.stub({"exit=0"});
  errno = 0;  // that of an earlier call must not be what keeps the program from running
  const auto worker = nursery.start(request);
  if (worker) return 1;
  return worker.error().text.ends_with(": the launcher is ending") ? 0 : 2;
}

/// In a process of its own, because no filter is ever taken away.
void check_apart(int (*run)()) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(run());
  int status = 0;
  ::waitpid(pid, &status, 0);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoFilter) {
    MESSAGE("not tested: this system takes no seccomp filter");
  } else {
    CHECK(WEXITSTATUS(status) == 0);
  }
}

}  // namespace

TEST_CASE("launcher: a start leaves the loop and the exit handlers of its parent alone") {
  static int handlers_run = 0;
  REQUIRE(std::atexit([] { ++handlers_run; }) == 0);
  UniqueFd gap(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Nursery nursery;
  nursery.wait(**nursery.start(nursery.stub({"exit=0"})));  // now the loop has its descriptors
  gap.reset();  // what a child opened for its parent would get this number, there alone
  bool woken = false;
  const auto alarm = nursery.clock->make_alarm();
  alarm->arm(nursery.clock->now() + std::chrono::milliseconds(50), [&] { woken = true; });
  CHECK_FALSE(start_in_vain(nursery));
  CHECK(handlers_run == 0);
  const auto worker = nursery.start(nursery.stub({"exit=5"}));
  REQUIRE(worker);
  CHECK(nursery.wait(**worker).status == ExitStatus::exited(5));
  while (!woken) nursery.io.run_one();
}

TEST_CASE("launcher: where clone3 is refused workers start, and in their cgroup") {
  check_apart(start_without_clone3);
}

TEST_CASE("launcher: a child whose parent has ended does not run its program") {
  check_apart(start_and_be_gone);
}

namespace {

struct Said {
  ExitStatus status;
  std::string text;
};

Said run(std::vector<std::string> argv) {
  Nursery nursery;
  Ear ear;
  LaunchRequest request;
  request.argv = std::move(argv);
  request.environment = {"PATH=/usr/bin:/bin"};
  request.stdout_fd = request.stderr_fd = ear.mouth();
  const auto child = nursery.start(request);
  REQUIRE(child);
  const auto status = nursery.wait(**child).status;
  return {status, ear.rest()};
}

}  // namespace

TEST_CASE("shell: a program gets its words as they are, looked up in PATH") {
  const auto said = run(shell_exec({"printf", "%s|", "a b", "$0", "*", "", "'", "\\n;"}));
  CHECK(said.status.success());
  CHECK(said.text == "a b|$0|*||'|\\n;|");
}

TEST_CASE("shell: a line is the shell's own") {
  CHECK(run(shell_line("echo a   b; exit 3")).text == "a b\n");
  CHECK(run(shell_line("echo a   b; exit 3")).status == ExitStatus::exited(3));
}

TEST_CASE("shell: a program that cannot be started is its end, with its name on stderr") {
  const auto missing = run(shell_exec({"/no/such/program", "x"}));
  CHECK(missing.status == ExitStatus::exited(127));
  CHECK(missing.text.find("/no/such/program") != std::string::npos);
  CHECK(run(shell_exec({"/"})).status == ExitStatus::exited(126));
}

TEST_CASE("exit status: exit 9 and death by signal 9 stay two facts") {
  const ExitStatus exited = ExitStatus::from_wait(9 << 8);
  const ExitStatus killed = ExitStatus::from_wait(9);
  CHECK(exited == ExitStatus::exited(9));
  CHECK(killed == ExitStatus::signaled(9));
  CHECK_FALSE(exited == killed);
  CHECK(exited.as_python() == 9);
  CHECK(killed.as_python() == -9);
  CHECK(killed.as_shell() == 137);
  CHECK(killed.by_signal(SIGKILL));
  CHECK_FALSE(exited.by_signal(9));
}

TEST_CASE("exit status: the bit of the core dump is not part of the signal") {
  const ExitStatus dumped = ExitStatus::from_wait(SIGSEGV | 0x80);
  CHECK(dumped.number == SIGSEGV);
  CHECK(dumped.core_dumped);
  CHECK(dumped.text() == "SIGSEGV (core dumped)");
  CHECK(ExitStatus::from_wait(SIGSEGV).text() == "SIGSEGV");
  CHECK(ExitStatus::from_wait(255 << 8).text() == "exit code 255");
}

TEST_CASE("exit status: only exit code 0 is a success") {
  CHECK(ExitStatus::from_wait(0).success());
  CHECK_FALSE(ExitStatus::exited(1).success());
  CHECK_FALSE(ExitStatus::signaled(SIGTERM).success());
}

TEST_CASE("signal names: torchrun has no names inside the real-time range") {
  CHECK(torchrun_signal_name(SIGTERM) == "SIGTERM");
  CHECK(torchrun_signal_name(SIGRTMIN) == "SIGRTMIN");
  CHECK(torchrun_signal_name(SIGRTMAX) == "SIGRTMAX");
  CHECK(torchrun_signal_name(SIGRTMIN + 3) == "<N/A>");
  CHECK(torchrun_signal_name(32) == "<N/A>");
}
