// SPDX-License-Identifier: Apache-2.0
#include "process/containment.hpp"

#include "process/process_table.hpp"
#include "support/children.hpp"
#include "support/fake_files.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <poll.h>
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
namespace fs = std::filesystem;

namespace {

constexpr auto kLong = 60s;  // a limit that only a defect reaches

struct Contained : Nursery {
  Containment containment{io, *launcher, nullptr};
  ~Contained() { ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); }

  /// The directory of the attempt's cgroup, or "".
  std::string cgroup() const {
    std::error_code none;
    return fs::read_symlink(fmt::format("/proc/self/fd/{}", containment.cgroup_fd()), none);
  }

  std::unique_ptr<Watched> worker(std::vector<std::string> steps, Ear& ear) {
    auto request = stub(std::move(steps), ear.mouth());
    request.cgroup_fd = containment.cgroup_fd();
    auto started = start(request);
    REQUIRE(started);
    return std::move(*started);
  }
};

/// Says that a test is left out, if so.
bool is_skipped(bool cannot) {
  if (cannot) MESSAGE("skipped: this user may not make cgroups here");
  return cannot;
}

long adopted_zombies(const PosixLauncher& launcher) {
  const auto own = launcher.children();
  return std::ranges::count_if(read_all_processes(), [&](const ProcessEntry& entry) {
    return entry.parent == ::getpid() && entry.zombie() &&
           !std::ranges::binary_search(own, entry.pid);
  });
}

/// The path among three lines, in an order that the kernel chooses.
std::string path_said(Ear& ear) {
  std::string path;
  for (int seen = 0; seen < 3; ++seen) {
    const std::string line = ear.line();
    if (line.starts_with("path ")) path = line.substr(5);
  }
  return path;
}

/// As the agent: names its cgroup, and stays.
void say_path(Ear& ear, const std::string& path) {
  const std::string text = "path " + path + "\n";
  if (::write(ear.mouth(), text.data(), text.size()) < 0) ::_exit(1);
  ear.close_mouth();
  ::pause();
}

std::string line_with(Ear& ear, const std::string& start) {
  std::string line;
  do {
    line = ear.line();
  } while (!line.starts_with(start) && !line.empty());
  return line;
}

}  // namespace

TEST_CASE("containment: what ended workers have left is found, told and left alone") {
  Contained here;
  Ear ear;
  const auto worker = here.worker({"child=setsid", "child=", "say=up", "stay"}, ear);
  CHECK(here.containment.leftovers().empty());  // a running worker, and what is below it
  CHECK(line_with(ear, "up") == "up");
  ::kill(worker->child->pid(), SIGKILL);
  here.wait(*worker);
  int ends = 0;
  here.containment.on_child_end([&] { ++ends; });
  const auto left = here.containment.leftovers();
  REQUIRE(left.size() == 2);
  CHECK(command_of(left[0]).contains("stub_worker child=setsid"));
  CHECK(here.containment.leftovers().size() == 2);
  ends = 0;
  signal_each(left, SIGTERM);
  while (!here.containment.leftovers().empty() || ends == 0) here.io.run_one();
}

TEST_CASE("containment: the sweep kills without a cgroup what it kills with one") {
  Contained here;  // no attempt begun, so no cgroup
  Ear ear;
  CHECK(here.containment.cgroup_fd() == -1);
  const auto worker = here.worker({"child=setsid,double,bare,deaf", "child=deep", "exit=0"}, ear);
  for (int born = 0; born < 3; ++born) CHECK(line_with(ear, "child").starts_with("child "));
  here.wait(*worker);
  const auto swept = here.containment.sweep(kLong);
  CHECK(swept.killed == 3);
  CHECK(swept.alive.empty());
  ear.rest();
  CHECK_FALSE(any_live_child());
}

TEST_CASE("containment: one that for ever forks itself anew is caught beside one that is spared") {
  Contained here;
  Ear ear, running_ear;
  const auto running = here.worker({"child=setsid", "say=up", "read", "stay"}, running_ear);
  CHECK(line_with(running_ear, "up") == "up");
  const auto worker = here.worker({"hop", "exit=0"}, ear);
  CHECK(line_with(ear, "hopping") == "hopping");
  here.wait(*worker);
  CHECK(here.containment.sweep(kLong).alive.empty());
  ear.rest();
  CHECK(descendants(read_all_processes(), running->child->pid()).size() == 1);
  CHECK(here.containment.end_attempt(kLong).alive.empty());
  running_ear.rest();
  CHECK(here.wait(*running).status.by_signal(SIGKILL));
}

TEST_CASE("containment: a running worker and all below it are spared by the sweep") {
  Contained here;
  Ear ended_ear, running_ear;
  here.containment.begin_attempt();
  const auto ended = here.worker({"child=setsid,double", "exit=0"}, ended_ear);
  const auto running = here.worker({"child=setsid", "say=up", "read", "stay"}, running_ear);
  here.wait(*ended);
  CHECK(line_with(running_ear, "up") == "up");
  const auto swept = here.containment.sweep(kLong);
  CHECK(swept.killed == 1);
  ended_ear.rest();
  CHECK(running->child->group_alive());
  CHECK(descendants(read_all_processes(), running->child->pid()).size() == 1);
  CHECK(here.containment.end_attempt(kLong).alive.empty());
  running_ear.rest();
  CHECK(here.wait(*running).status.by_signal(SIGKILL));
}

TEST_CASE("containment: orphans that end are reaped while the job runs") {
  Contained here;
  Ear ear;
  const auto worker = here.worker({"zombies=200", "say=up", "stay"}, ear);
  CHECK(line_with(ear, "up") == "up");
  while (any_live_child_in_group(worker->child->pid()) && adopted_zombies(*here.launcher) > 0) {
    here.io.restart();
    here.io.run_one();  // a lost wake-up shows as a test that never ends
  }
  CHECK(adopted_zombies(*here.launcher) == 0);
}

TEST_CASE("containment: an ended worker does not hide the orphans of the others for ever") {
  Contained here;
  Ear first_ear, ear;
  const auto first = here.worker({"exit=0"}, first_ear);
  here.wait(*first);  // its zombie is the first child that the kernel shows from now on
  std::vector<std::unique_ptr<Nursery::Watched>> workers;
  for (int index = 0; index < 70; ++index) {
    workers.push_back(here.worker({"zombies=3", "exit=0"}, ear));
    here.wait(*workers.back());
  }
  here.io.restart();
  here.io.poll();
  CHECK(adopted_zombies(*here.launcher) < 3 * 70);
  CHECK(::kill(first->child->pid(), 0) == 0);
}

TEST_CASE("cgroup: its directory is found in pure, hybrid and container mounts") {
  const std::string hybrid =
      "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
      "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime shared:9 - cgroup cgroup rw,name=systemd\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
  const auto cgroup_directory = [](std::string_view cgroup, std::string_view mountinfo) {
    const auto place = cgroup_place(cgroup, mountinfo);
    return place ? place->folder : std::nullopt;
  };
  CHECK(cgroup_directory("9:name=systemd:/x\n0::/\n", hybrid) == "/sys/fs/cgroup/unified");
  CHECK(cgroup_directory("0::/a/b\n", hybrid) == "/sys/fs/cgroup/unified/a/b");
  CHECK_FALSE(cgroup_directory("1:memory:/a\n", hybrid));
  const std::string pure =
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n";
  CHECK(cgroup_directory("0::/user.slice/u 1.scope\n", pure) ==
        "/sys/fs/cgroup/user.slice/u 1.scope");
  const std::string container = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  CHECK(cgroup_directory("0::/docker/abc\n", container) == "/sys/fs/cgroup");
  CHECK(cgroup_directory("0::/docker/abc/job\n", container) == "/sys/fs/cgroup/job");
  CHECK_FALSE(cgroup_directory("0::/docker/abcd\n", container));
  CHECK_FALSE(cgroup_directory("0::/../other\n", pure));
  CHECK_FALSE(cgroup_directory("0::/\n", "1 2 0:3 / / rw - ext4 /dev/vda rw\n"));
  CHECK_FALSE(cgroup_directory("", ""));
  CHECK(cgroup_directory("0::/\n", "1 2 0:3 / /my\\040mount rw - cgroup2 none rw\n") ==
        "/my mount");
}

TEST_CASE("cgroup: a CPU quota, its own or one above it, leaves so many CPUs, rounded up") {
  const FakeFiles files;
  const auto mount = [&](std::string root, const std::string& name, const std::string& type) {
    return fmt::format("30 23 0:26 {} {} rw - {}\n", root, files.root() + "/" + name, type);
  };
  const std::string v2 = mount("/", "v2", "cgroup2 cgroup2 rw,nsdelegate");
  files.add("v2/a/b/cpu.max", "max 100000\n");
  const auto within_quota = [](int cpus, std::string_view cgroup, std::string_view mountinfo) {
    return cpus_within_quota(cpus, cgroup_place(cgroup, mountinfo, "cpu"));
  };
  CHECK(within_quota(8, "0::/a/b\n", v2) == 8);
  files.add("v2/a/cpu.max", "250000 100000\n");
  CHECK(within_quota(8, "0::/a/b\n", v2) == 3);
  CHECK(within_quota(2, "0::/a/b\n", v2) == 2);
  CHECK(within_quota(8, "0::/\n", v2) == 8);
  files.add("v2/cpu.max", "10000 100000\n");  // of a container, which sees its cgroup as the root
  CHECK(within_quota(8, "0::/\n", v2) == 1);

  const std::string v1 = mount("/docker/x", "v1", "cgroup cgroup rw,cpu,cpuacct") +
                         mount("/docker/x", "memory", "cgroup cgroup rw,memory");
  const std::string mine = "5:memory:/docker/x/m\n4:cpu,cpuacct:/docker/x/job\n0::/docker/x\n";
  CHECK(within_quota(8, mine, v1) == 8);
  files.add("v1/job/cpu.cfs_period_us", "50000\n");
  files.add("v1/job/cpu.cfs_quota_us", "-1\n");
  CHECK(within_quota(8, mine, v1) == 8);
  files.add("v1/cpu.cfs_period_us", "50000\n");
  files.add("v1/cpu.cfs_quota_us", "200000\n");
  CHECK(within_quota(8, mine, v1) == 4);
  CHECK(within_quota(8, "", "") == 8);
}

TEST_CASE("cgroup: each attempt has a fresh one, in which its workers are born") {
  Contained here;
  here.containment.begin_attempt();
  if (is_skipped(here.containment.cgroup_fd() < 0)) return;
  const std::string first = here.cgroup();
  Ear ear;
  const auto worker = here.worker({"cgroup", "child=setsid,double,bare", "stay"}, ear);
  const std::string name = fs::path(first).filename();
  CHECK(ear.line().ends_with("/" + name));
  CHECK(line_with(ear, "child").starts_with("child "));
  here.containment.begin_attempt();
  ear.rest();
  CHECK(here.wait(*worker).status.by_signal(SIGKILL));
  CHECK(here.cgroup() != first);
  CHECK_FALSE(fs::exists(first));
  const std::string second = here.cgroup();
  here.containment.end_attempt(kLong);
  CHECK_FALSE(fs::exists(second));
}

TEST_CASE("cgroup: what has joined that of the next attempt outlives this one") {
  Contained here;
  Nursery others;
  here.containment.begin_attempt();
  const int ahead = here.containment.next_cgroup_fd();
  if (is_skipped(ahead < 0)) return;
  CHECK(here.containment.next_cgroup_fd() == ahead);
  Ear spare_ear, ear;
  auto request = others.stub({"say=up", "stay"}, spare_ear.mouth());
  request.cgroup_fd = ahead;
  const auto spare = others.start(request);
  REQUIRE(spare);
  const pid_t pid = (*spare)->child->pid();
  here.containment.spare([pid] { return std::vector<pid_t>{pid}; });
  CHECK(line_with(spare_ear, "up") == "up");
  const auto worker = here.worker({"child=setsid", "exit=0"}, ear);
  here.wait(*worker);
  CHECK(here.containment.sweep(kLong).alive.empty());
  ear.rest();
  CHECK(any_live_child_in_group(pid));
  const std::string first = here.cgroup();
  here.containment.begin_attempt();
  CHECK_FALSE(fs::exists(first));
  CHECK(here.containment.cgroup_fd() == ahead);
  const std::string second = here.cgroup();
  CHECK(is_populated(second));
  const int third = here.containment.next_cgroup_fd();
  CHECK(third >= 0);
  CHECK(third != ahead);
  here.containment.end_attempt(kLong);  // with it the one that no attempt has had
  CHECK(others.wait(**spare).status.by_signal(SIGKILL));
  CHECK_FALSE(fs::exists(second));
  CHECK(here.containment.cgroup_fd() == -1);
}

TEST_CASE(
    "cgroup: what an agent that was killed with its guardian has left ends at the next start") {
  {
    Contained probe;
    probe.containment.begin_attempt();
    if (is_skipped(probe.containment.cgroup_fd() < 0)) return;
  }
  Ear ear;
  const pid_t pid = ::fork();
  if (pid == 0) {
    Contained there;
    there.containment.begin_attempt();
    const auto worker = there.worker({"child=setsid,double,bare,deaf", "say=up", "stay"}, ear);
    say_path(ear, there.cgroup());
  }
  const auto path = path_said(ear);
  {
    Contained alive;  // an agent that lives is left alone
    alive.containment.begin_attempt();
    CHECK(fs::exists(path));
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  Contained here;
  here.containment.begin_attempt();
  // Another job of this machine that starts just now may be at it before us.
  for (int i = 0; i < 500 && fs::exists(path); ++i) ::poll(nullptr, 0, 10);
  CHECK_FALSE(fs::exists(path));
  destroy_cgroup(path, kLong);  // else a failure would hang
  ear.rest();
}

TEST_CASE("cgroup: the guardian empties and removes the one that the agent could not") {
  Ear ear;
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto agent = guardian::split();
    Nursery nursery;
    Containment containment(nursery.io, *nursery.launcher, &agent);
    containment.begin_attempt();
    auto request = nursery.stub({"child=setsid,double,bare,deaf", "say=up", "stay"}, ear.mouth());
    request.cgroup_fd = containment.cgroup_fd();
    const auto worker = nursery.start(request);
    std::error_code none;  // where none could be made, nothing is there to be removed
    const auto link = fmt::format("/proc/self/fd/{}", containment.cgroup_fd());
    say_path(ear, fs::read_symlink(link, none));
  }
  const auto path = path_said(ear);
  for (const auto& member : descendants(read_all_processes(), pid)) {
    if (member.parent == pid) ::kill(member.pid, SIGKILL);
  }
  ear.rest();
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK((path.empty() || !fs::exists(path)));
}

TEST_CASE("cgroup: one that cannot be joined is no reason not to start") {
  Nursery nursery;
  const UniqueFd folder(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  auto request = nursery.stub({"exit=4"});
  request.cgroup_fd = folder.get();
  const auto worker = nursery.start(request);
  REQUIRE(worker);
  CHECK(nursery.wait(**worker).status == ExitStatus::exited(4));
}

TEST_CASE("cgroup: without rights none is made, and that is only an error value") {
  const auto refused = Cgroup::make("/no/such/hierarchy", "x");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text.find("/no/such/hierarchy/x") != std::string::npos);
  CHECK(destroy_cgroup("/no/such/hierarchy/x", 1s));
}

TEST_CASE("containment: children that the process had before are nobody's to kill or reap") {
  Nursery before;
  Ear strange;
  const auto stranger = before.start(before.stub({"pid", "stay"}, strange.mouth()));
  REQUIRE(stranger);
  const auto said = strange.line();
  {
    Contained here;
    Ear ear;
    here.containment.begin_attempt();
    const auto worker = here.worker({"child=setsid", "exit=0"}, ear);
    here.wait(*worker);
    // Not `killed`: with a cgroup the child may be dead before it can be counted.
    CHECK(here.containment.sweep(kLong).alive.empty());
    ear.rest();  // returns when the last of them has closed the pipe
    here.containment.kill_all();
    CHECK(here.containment.end_attempt(kLong).alive.empty());
  }
  const auto entry = read_process((*stranger)->child->pid());
  REQUIRE(entry);
  CHECK_FALSE(entry->zombie());
  CHECK(said == "pid " + std::to_string(entry->pid));
}

namespace {

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
    if (!parent.empty()) destroy_cgroup(parent, kLong);
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
  if (is_skipped(!here.made())) return;
  const auto holder = here.start_holder();
  end_stale_cgroups(here.parent, kLong);
  CHECK(fs::exists(here.path));
  CHECK(here.member_lives());
  here.end(holder);
  const auto ended = end_stale_cgroups(here.parent, kLong);
  CHECK(ended.stuck.empty());
  REQUIRE(ended.killed == std::vector{here.name});
  int status = 0;  // it may be out of the cgroup before it is a zombie
  ::waitpid(std::exchange(here.member, 0), &status, 0);
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK_FALSE(fs::exists(here.path));
}

TEST_CASE("cgroup: of an empty one nothing is said, and one that was never locked stays") {
  StaleCgroup empty, unlocked("-unlocked");
  if (is_skipped(!empty.made() || !unlocked.made())) return;
  empty.end(std::exchange(empty.member, 0));
  CHECK(end_stale_cgroups(empty.parent, kLong).killed.empty());
  CHECK_FALSE(fs::exists(empty.path));
  CHECK(end_stale_cgroups(unlocked.parent, kLong).killed.empty());
  CHECK(unlocked.member_lives());
}

TEST_CASE("cgroup: the lock is the agent's, and no worker inherits it") {
  Contained here;
  here.containment.begin_attempt();
  const std::string path = here.cgroup();
  if (is_skipped(path.empty())) return;
  CHECK_FALSE(lock_cgroup(path));
  Ear ear;
  auto request = here.stub({"say=up", "stay"}, ear.mouth());
  request.cgroup_fd = here.containment.cgroup_fd();
  const auto worker = here.start(request);
  REQUIRE(worker);
  CHECK(ear.line() == "up");
  const auto descriptors = fmt::format("/proc/{}/fd", (*worker)->child->pid());
  for (const auto& entry : fs::directory_iterator(descriptors)) {
    CHECK(fs::read_symlink(entry.path()).string() != path);
  }
  here.containment.kill_all();
  here.wait(**worker);
}
