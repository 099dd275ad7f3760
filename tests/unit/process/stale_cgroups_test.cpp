// SPDX-License-Identifier: Apache-2.0

#include "process/containment.hpp"
#include "process/process_table.hpp"
#include "support/children.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <utility>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;
using namespace std::chrono_literals;

namespace {

constexpr auto kOneMinute = 60s;  // a limit that only a defect reaches

struct ContainedGroup : Nursery {
  Containment containment{io, *launcher, nullptr};
  ~ContainedGroup() { ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); }
};

/// A cgroup with one process in it, named as if its owner were dead, in a place of its own.
struct StaleCgroup {
  explicit StaleCgroup(const std::string& suffix = "") {
    const auto own = own_cgroup_directory();
    if (!own) return;
    static int made = 0;
    parent = fmt::format("{}/test-stale-{}-{}", *own, ::getpid(), ++made);
    const pid_t dead = start([] {});
    ::waitpid(dead, nullptr, 0);
    name = fmt::format("elastrun-{}-{}-1-0{}", own_pid_namespace(), dead, suffix);
    path = parent + "/" + name;
    if (::mkdir(parent.c_str(), 0755) != 0 || ::mkdir(path.c_str(), 0755) != 0) return;
    const UniqueFd members(::open((path + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    member = start([] { ::pause(); });
    const auto pid = std::to_string(member);
    filled = members && ::write(members.get(), pid.data(), pid.size()) > 0;
  }
  StaleCgroup(const StaleCgroup&) = delete;
  StaleCgroup& operator=(const StaleCgroup&) = delete;
  ~StaleCgroup() {
    if (member > 0) end(member);
    if (!parent.empty()) destroy_cgroup(parent, kOneMinute);
  }

  template <class Body>
  static pid_t start(Body body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      body();
      ::_exit(0);
    }
    return pid;
  }
  /// A process that holds the lock, from now on.
  pid_t start_holder() const {
    Ear ear;
    const pid_t holder = start([&] {
      const UniqueFd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      const bool held = lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
      if (held && ::write(ear.mouth(), "held\n", 5) == 5) ::pause();
    });
    CHECK(ear.line() == "held");
    return holder;
  }
  bool made() const { return filled; }
  bool member_lives() {
    if (member > 0 && ::waitpid(member, nullptr, WNOHANG) == member) member = 0;
    return member > 0;
  }
  void end(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  std::string parent, name, path;
  pid_t member = 0;
  bool filled = false;
};

}  // namespace

TEST_CASE("cgroup: a live agent whose process cannot be seen is left alone, a dead one's ends") {
  StaleCgroup here;
  if (!here.made()) {
    MESSAGE("skipped: this user may not make cgroups here");
    return;
  }
  const auto holder = here.start_holder();
  end_stale_cgroups(here.parent, kOneMinute);
  CHECK(std::filesystem::exists(here.path));
  CHECK(here.member_lives());
  here.end(holder);
  const auto ended = end_stale_cgroups(here.parent, kOneMinute);
  CHECK(ended.stuck.empty());
  REQUIRE(ended.killed == std::vector{here.name});
  int status = 0;  // it may be out of the cgroup before it is a zombie
  ::waitpid(std::exchange(here.member, 0), &status, 0);
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK_FALSE(std::filesystem::exists(here.path));
}

TEST_CASE("cgroup: of an empty one nothing is said, and one that was never locked stays") {
  StaleCgroup empty, unlocked("-unlocked");
  if (!empty.made() || !unlocked.made()) {
    MESSAGE("skipped: this user may not make cgroups here");
    return;
  }
  empty.end(std::exchange(empty.member, 0));
  CHECK(end_stale_cgroups(empty.parent, kOneMinute).killed.empty());
  CHECK_FALSE(std::filesystem::exists(empty.path));
  CHECK(end_stale_cgroups(unlocked.parent, kOneMinute).killed.empty());
  CHECK(unlocked.member_lives());
}

TEST_CASE("cgroup: the lock is the agent's, and no worker inherits it") {
  ContainedGroup here;
  here.containment.begin_attempt();
  const std::string path = here.containment.cgroup_path();
  if (path.empty()) {
    MESSAGE("skipped: this user may not make cgroups here");
    return;
  }
  CHECK_FALSE(lock_cgroup(path));
  Ear ear;
  auto request = here.stub({"say=up", "stay"}, ear.mouth());
  request.cgroup_fd = here.containment.cgroup_fd();
  const auto worker = here.start(request);
  REQUIRE(worker);
  CHECK(ear.line() == "up");
  const auto descriptors = fmt::format("/proc/{}/fd", (*worker)->child->pid());
  for (const auto& entry : std::filesystem::directory_iterator(descriptors)) {
    CHECK(std::filesystem::read_symlink(entry.path()).string() != path);
  }
  here.containment.kill_all();
  here.wait(**worker);
}
