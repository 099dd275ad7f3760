// SPDX-License-Identifier: Apache-2.0
#include "core/unique_fd.hpp"
#include "runs/run_registry.hpp"

#include <array>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

using namespace elastrun;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

constexpr const char* kMark = "ELASTRUN_AGENT_ID=node_7_test";

/// A session that its leader, a worker, has left; `cat` stays in it, in a group of its own, with
/// this in its environment. The test is its reaper.
class Session {
 public:
  explicit Session(const char* variable, bool leader_stays = false) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    std::array<int, 2> told{}, held{};
    REQUIRE(::pipe2(told.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(held.data(), O_CLOEXEC) == 0);
    leader = ::fork();
    if (leader == 0) lead(variable, leader_stays, told[1], held[0]);
    ::close(told[1]);
    ::close(held[0]);
    stdin_.reset(held[1]);
    // Its end is closed by the program's start: the environment is the new one then.
    REQUIRE(::read(told[0], &left, sizeof left) == sizeof left);
    char more = 0;
    CHECK(::read(told[0], &more, 1) == 0);
    ::close(told[0]);
    start_time = process::read_process(leader)->start_time;
    if (!leader_stays) ::waitpid(leader, nullptr, 0);
  }
  ~Session() {
    for (const pid_t pid : {left, leader}) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool lives() const {
    const auto now = process::read_process(left);
    return now && !now->zombie();
  }

  pid_t leader = 0, left = 0;
  std::uint64_t start_time = 0;

 private:
  static void lead(const char* variable, bool stays, int told, int held) {
    ::setsid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);
      const pid_t self = ::getpid();
      if (::write(told, &self, sizeof self) < 0) ::_exit(1);
      ::dup2(held, 0);
      std::string name = "cat", mark = variable;
      std::array<char*, 2> argv{name.data(), nullptr}, environment{mark.data(), nullptr};
      ::execve("/bin/cat", argv.data(), environment.data());
      ::_exit(1);
    }
    ::close(told);
    if (stays) ::pause();
    ::_exit(0);
  }
  UniqueFd stdin_;
};

runs::RunEntry entry_of(const Session& session) {
  runs::RunEntry entry;
  entry.run_id = "night";
  REQUIRE(runs::identify(entry));
  entry.start_time -= 1;  // somebody who has gone
  entry.agent_id = "node_7_test";
  entry.workers = {{0, 0, session.leader, "", session.start_time}};
  return entry;
}

std::size_t left_of(const runs::RunEntry& entry) {
  return runs::leftovers_of(entry, process::read_all_processes()).certain.size();
}

/// A worker that hangs in the kernel: in vfork(2), until its child ends.
struct HungWorker {
  HungWorker() {
    if (pid == 0) {
      ::setsid();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::vfork() == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (true) ::pause();
      }
      ::_exit(0);
    }
    for (auto now = process::read_process(pid); now && now->state != 'D';) {
      ::sched_yield();
      now = process::read_process(pid);
    }
  }
  ~HungWorker() { end(); }
  HungWorker(const HungWorker&) = delete;
  HungWorker& operator=(const HungWorker&) = delete;
  void end() {
    if (pid > 0) ::kill(-pid, SIGKILL);
    if (pid > 0) ::waitpid(std::exchange(pid, 0), nullptr, 0);
  }
  pid_t pid = ::fork();
};

/// A registry with the entry of one run.
struct Registry {
  explicit Registry(const runs::RunEntry& entry) {
    std::array<char, 32> name{"/tmp/runs.XXXXXX"};
    place = ::mkdtemp(name.data());
    std::ofstream(file()) << runs::encode(entry);
  }
  ~Registry() { fs::remove_all(place); }
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  std::string file() const { return place + "/one.json"; }
  std::string place;
};

}  // namespace

TEST_CASE("leftovers: what is in a worker's session, with the mark of its agent, is the run's") {
  const Session session(kMark);
  const auto entry = entry_of(session);
  const auto left = runs::leftovers_of(entry, process::read_all_processes()).certain;
  REQUIRE(left.size() == 1);
  CHECK(left[0].pid == session.left);
  CHECK(runs::names_of(left) == std::to_string(session.left) + " (cat)");
}

TEST_CASE("leftovers: what may be somebody else's is not the run's") {
  const Session session(kMark);
  auto entry = entry_of(session);
  SUBCASE("an agent of another mark") {
    entry.agent_id = "node_77_test";
  }
  SUBCASE("an agent whose mark begins so") {
    entry.agent_id = "node_7_tes";
  }
  SUBCASE("an agent without a mark") {
    entry.agent_id.clear();
  }
  SUBCASE("a process older than the worker") {
    entry.workers[0].start_time += 1000;
  }
  SUBCASE("a worker of unknown age") {
    entry.workers[0].start_time = 0;
  }
  SUBCASE("another session") {
    entry.workers[0].pid = session.left;
  }
  CHECK(left_of(entry) == 0);
}

TEST_CASE("leftovers: a session that a later process of the same number leads is not the run's") {
  const Session session(kMark, true);
  auto entry = entry_of(session);
  CHECK(left_of(entry) == 1);
  entry.workers[0].start_time -= 1;
  CHECK(left_of(entry) == 0);
}

TEST_CASE("leftovers: who looks, and the session in which he does, are spared") {
  const pid_t own = ::getsid(0);
  const auto leader = process::read_process(own);
  if (own <= 1) {
    MESSAGE("not tested: the session is that of the machine or container");
    return;
  }
  runs::RunEntry entry;
  entry.agent_id = "node_7_test";
  entry.workers = {{0, 0, own, "", leader ? leader->start_time : 1}};
  const auto left = runs::leftovers_of(entry, process::read_all_processes());
  CHECK(left.certain.empty());
  CHECK(left.unsure);  // somebody else is to look
}

TEST_CASE("leftovers: who has started the one that looks is spared, in whatever session") {
  const auto self = process::read_process(::getpid());
  const auto parent = process::read_process(::getppid());
  REQUIRE(self);
  REQUIRE(parent);
  auto table = process::read_all_processes();
  for (auto& one : table) {
    if (one.pid == parent->pid) one.session = one.pid;
  }
  runs::RunEntry entry;
  entry.agent_id = "node_7_test";
  entry.workers = {{0, 0, parent->pid, "", parent->start_time}};
  CHECK(runs::leftovers_of(entry, table).unsure);
}

TEST_CASE("leftovers: a run is forgotten when all that it left is gone, and not before") {
  const Session session(kMark);
  const Registry registry(entry_of(session));
  CHECK(runs::list_runs({registry.place}).empty());
  REQUIRE(runs::list_dead_runs({registry.place}).size() == 1);
  CHECK(session.lives());
  const auto ended = runs::end_dead_runs({registry.place}, 60s);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].entry.run_id == "night");
  CHECK(ended[0].killed.size() == 1);
  CHECK(ended[0].alive.empty());
  CHECK_FALSE(session.lives());
  CHECK_FALSE(fs::exists(registry.file()));
  CHECK(runs::end_dead_runs({registry.place}, 60s).empty());
}

TEST_CASE("leftovers: a stranger in the session is left alone, and the entry goes") {
  const Session session("SOMETHING=else");
  const Registry registry(entry_of(session));
  CHECK(runs::end_dead_runs({registry.place}, 60s).empty());
  CHECK(session.lives());
  CHECK_FALSE(fs::exists(registry.file()));
}

TEST_CASE("leftovers: a run whose agent lives is nobody's business") {
  const Session session(kMark);
  auto entry = entry_of(session);
  entry.start_time += 1;
  const Registry registry(entry);
  CHECK(runs::end_dead_runs({registry.place}, 60s).empty());
  CHECK(session.lives());
  CHECK(fs::exists(registry.file()));
}

TEST_CASE("leftovers: who hangs in the kernel is not read, and the entry stays until he can be") {
  HungWorker worker;
  runs::RunEntry entry;
  entry.run_id = "night";
  REQUIRE(runs::identify(entry));
  entry.start_time -= 1;  // somebody who has gone
  entry.agent_id = "node_7_test";
  entry.workers = {{0, 0, worker.pid, "", process::read_process(worker.pid)->start_time}};
  const Registry registry(entry);
  const auto left = runs::leftovers_of(entry, process::read_all_processes());
  CHECK(left.certain.empty());
  CHECK(left.unsure);
  CHECK(runs::end_dead_runs({registry.place}, 60s).empty());
  CHECK(fs::exists(registry.file()));
  worker.end();
  CHECK(runs::end_dead_runs({registry.place}, 60s).empty());
  CHECK_FALSE(fs::exists(registry.file()));
}
