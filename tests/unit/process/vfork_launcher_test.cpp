// SPDX-License-Identifier: Apache-2.0
#include "process/cgroup.hpp"
#include "support/children.hpp"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <optional>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;

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
