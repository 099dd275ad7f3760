// SPDX-License-Identifier: Apache-2.0
#include "runs/run_registry.hpp"

#include "core/unique_fd.hpp"

#include <array>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <signal.h>
#include <string>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

using namespace elastrun;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() {
    std::array<char, 32> name{"/tmp/runs.XXXXXX"};
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

runs::RunEntry own_entry() {
  runs::RunEntry entry;
  entry.run_id = "night";
  REQUIRE(runs::identify(entry));
  entry.phase = "running";
  entry.started = WallTime(std::chrono::seconds(1'700'000'000));
  entry.workers = {{4, 0, 71, "/logs/attempt_0/0"}, {5, 1, 72, "/logs/attempt_0/1"}};
  return entry;
}

void write_file(const std::string& path, std::string_view text) {
  std::ofstream(path) << text;
}

/// A registry in which others leave files with names of our choice.
struct Shared : Folder {
  Shared() { entry = own_entry(); }
  std::string add(std::uint64_t pid_namespace, const std::string& boot_id, bool old = false) {
    entry.pid += 1;
    entry.pid_namespace = pid_namespace;
    entry.boot_id = boot_id;
    const auto file = path + "/" +
                      runs::format_file_name(
                          {entry.pid, entry.start_time, pid_namespace, runs::boot_prefix(boot_id)});
    write_file(file, runs::encode(entry));
    if (old) fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(48));
    return file;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  runs::RunEntry entry;
};

constexpr const char* kOtherBoot = "abcdef01-0000-0000-0000-000000000000";

}  // namespace

TEST_CASE("runs: an entry survives its text, and a torn one is refused") {
  const auto entry = own_entry();
  const std::string text = runs::encode(entry);
  const auto again = runs::decode(text);
  REQUIRE(again);
  CHECK(*again == entry);
  for (std::size_t size = 0; size + 2 < text.size(); ++size) {
    CHECK_FALSE(runs::decode(text.substr(0, size)));
  }
  CHECK_FALSE(runs::decode(R"({"run_id":"x","pid":-4,"start_time":1})"));
  CHECK_FALSE(runs::decode(R"(["run_id"])"));
  CHECK(runs::decode(R"({"run_id":"x","pid":4,"start_time":1,"started":1e300,"workers":7})"));
}

TEST_CASE("runs: names and paths that are no UTF-8 hide no run") {
  auto entry = own_entry();
  entry.run_id = entry.entry_point = "n\xff";
  entry.run_directory = entry.workers[0].directory = "/logs/n\xff";
  const auto again = runs::decode(runs::encode(entry));
  REQUIRE(again);
  CHECK(again->run_id == "n\xEF\xBF\xBD");
  CHECK(again->workers[0].directory == "/logs/n\xEF\xBF\xBD");
}

TEST_CASE("runs: a registered run is listed until its registration goes") {
  const Folder folder;
  const std::vector<std::string> places{folder.path + "/first", folder.path + "/second"};
  {
    runs::Registration registration(places);
    auto entry = own_entry();
    REQUIRE(registration.write(entry));
    entry.attempt = 2;
    REQUIRE(registration.write(entry));
    const auto listed = runs::list_runs(places);
    REQUIRE(listed.size() == 1);
    CHECK(listed[0].entry == entry);
    CHECK(listed[0].path == registration.path());
    struct stat info {};
    REQUIRE(::stat(places[0].c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0700);
  }
  CHECK(runs::list_runs(places).empty());
  CHECK(fs::is_empty(places[0]));
}

TEST_CASE("runs: entries of processes that have gone are removed, also where a pid is used again") {
  const Folder folder;
  const std::vector<std::string> places{folder.path + "/runs"};
  runs::Registration registration(places);
  REQUIRE(registration.write(own_entry()));
  auto reused = own_entry();
  reused.start_time -= 1;
  write_file(places[0] + "/reused.json", runs::encode(reused));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  auto gone = own_entry();
  gone.pid = child;
  write_file(places[0] + "/gone.json", runs::encode(gone));
  auto elsewhere = own_entry();
  elsewhere.pid_namespace += 1;
  write_file(places[0] + "/elsewhere.json", runs::encode(elsewhere));
  write_file(places[0] + "/torn.json", "{\"run_id\":");
  CHECK(runs::list_runs(places).size() == 1);
  CHECK_FALSE(fs::exists(places[0] + "/reused.json"));
  CHECK_FALSE(fs::exists(places[0] + "/gone.json"));
  CHECK(fs::exists(places[0] + "/elsewhere.json"));
}

TEST_CASE("runs: a process that lives, but of which nothing can be read, is not taken for dead") {
  const auto entry = own_entry();
  REQUIRE(runs::is_alive(entry));
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{0, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const bool alive = runs::is_alive(entry);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(alive);
}

TEST_CASE("runs: a directory that others may enter, or that is a link, is not used") {
  const Folder folder;
  const std::string open = folder.path + "/open", link = folder.path + "/link";
  REQUIRE(::mkdir(open.c_str(), 0700) == 0);
  REQUIRE(::chmod(open.c_str(), 0755) == 0);
  REQUIRE(::mkdir((folder.path + "/target").c_str(), 0700) == 0);
  fs::create_directory_symlink(folder.path + "/target", link);
  runs::Registration registration({open, link, folder.path + "/no/such"});
  const auto written = registration.write(own_entry());
  REQUIRE_FALSE(written);
  CHECK(written.error().text.find("this user's alone") != std::string::npos);
  CHECK(fs::is_empty(open));
  CHECK(fs::is_empty(folder.path + "/target"));
  write_file(open + "/x.json", runs::encode(own_entry()));
  CHECK(runs::list_runs({open}).empty());
}

TEST_CASE("runs: the next place takes over when the first has been tidied away") {
  const Folder folder;
  const std::string session = folder.path + "/session";
  REQUIRE(::mkdir(session.c_str(), 0700) == 0);
  const std::vector<std::string> places{session + "/elastrun", folder.path + "/lasting"};
  runs::Registration registration(places);
  REQUIRE(registration.write(own_entry()));
  CHECK(registration.path().starts_with(session));
  fs::remove_all(session);  // a logout
  REQUIRE(registration.write(own_entry()));
  CHECK(registration.path().starts_with(places[1]));
  CHECK(runs::list_runs(places).size() == 1);
}

TEST_CASE("runs: the name of an entry's file tells whose it is") {
  const runs::FileName name{4711, 123, 4026531836, "0a1b2c3d"};
  CHECK(runs::format_file_name(name) == "4711-123-4026531836-0a1b2c3d.json");
  CHECK(runs::parse_file_name(runs::format_file_name(name)) == name);
  CHECK(runs::boot_prefix("0a1b2c3d-1111-2222-3333-444455556666\n") == "0a1b2c3d");
  CHECK(runs::boot_prefix("").empty());
  for (const auto* other :
       {"", ".json", "4711-123.json", "4711-123-4-.json", "4711-123-4-xyz.json", "-4-123-4-a.json",
        "0-123-4-a.json", "4711-123-4-a", "4711-123-4-a-b.json", "99999999999-1-4-a.json",
        "4711-123-4 -a.json", "4711-123-4-../a.json"}) {
    CHECK_FALSE(runs::parse_file_name(other));
  }
}

TEST_CASE("runs: entries of another boot are removed, of containers that have gone a day later") {
  Shared shared;
  const auto here = own_entry();
  const auto earlier = shared.add(here.pid_namespace, kOtherBoot);
  const auto elsewhere = shared.add(here.pid_namespace + 1, kOtherBoot);
  const auto young = shared.add(here.pid_namespace + 1, here.boot_id);
  const auto old = shared.add(here.pid_namespace + 1, here.boot_id, true);
  CHECK(runs::list_runs({shared.path}).empty());
  CHECK_FALSE(fs::exists(earlier));
  CHECK_FALSE(fs::exists(elsewhere));
  CHECK(fs::exists(young));
  CHECK_FALSE(fs::exists(old));
}

TEST_CASE("runs: an entry whose lock is held is somebody's who lives elsewhere") {
  Shared shared;
  const auto here = own_entry();
  const auto container = shared.add(here.pid_namespace + 1, here.boot_id, true);
  const auto machine = shared.add(here.pid_namespace, kOtherBoot);
  {
    const UniqueFd first(::open(container.c_str(), O_RDONLY | O_CLOEXEC));
    const UniqueFd second(::open(machine.c_str(), O_RDONLY | O_CLOEXEC));
    REQUIRE(::flock(first.get(), LOCK_EX) == 0);
    REQUIRE(::flock(second.get(), LOCK_EX) == 0);
    CHECK(runs::list_runs({shared.path}).empty());
    CHECK(shared.files() == 2);
  }
  CHECK(runs::list_runs({shared.path}).empty());
  CHECK(shared.files() == 0);
}

TEST_CASE("runs: a registration holds the lock of its file, also after it was replaced") {
  const Folder folder;
  const std::vector<std::string> places{folder.path + "/runs"};
  runs::Registration registration(places);
  for (int attempt = 0; attempt < 2; ++attempt) {
    REQUIRE(registration.write(own_entry()));
    const UniqueFd file(::open(registration.path().c_str(), O_RDONLY | O_CLOEXEC));
    CHECK(::flock(file.get(), LOCK_SH | LOCK_NB) != 0);
  }
}

TEST_CASE("runs: thousands of entries of others go piece by piece, and the own ones are found") {
  Shared shared;
  const auto here = own_entry();
  for (int i = 0; i < 1200; ++i) shared.add(here.pid_namespace + 1, kOtherBoot);
  runs::Registration registration({shared.path});
  REQUIRE(registration.write(own_entry()));
  CHECK(runs::list_runs({shared.path}).size() == 1);
  CHECK(shared.files() == 701);
  CHECK(runs::list_runs({shared.path}).size() == 1);
  CHECK(runs::list_runs({shared.path}).size() == 1);
  CHECK(shared.files() == 1);
}

TEST_CASE("runs: what a killed agent had not put in its place yet is removed") {
  Shared shared;
  const auto here = own_entry();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const auto boot = runs::boot_prefix(here.boot_id);
  const auto name = [&](pid_t pid) {
    return shared.path + "/." +
           runs::format_file_name({pid, here.start_time, here.pid_namespace, boot});
  };
  write_file(name(child), "{");
  write_file(name(here.pid), "{");
  CHECK(runs::list_runs({shared.path}).empty());
  CHECK_FALSE(fs::exists(name(child)));
  CHECK(fs::exists(name(here.pid)));
}

TEST_CASE("runs: only the system's own places are sure to answer") {
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before != nullptr ? before : "";
  ::unsetenv("XDG_RUNTIME_DIR");
  ::unsetenv("ELASTRUN_RUNTIME_DIR");
  CHECK(runs::are_places_near());
  ::setenv("XDG_RUNTIME_DIR", "/run/user/1000", 1);
  CHECK(runs::are_places_near());
  ::setenv("XDG_RUNTIME_DIR", "/home/ada/run", 1);
  CHECK_FALSE(runs::are_places_near());
  ::unsetenv("XDG_RUNTIME_DIR");
  ::setenv("ELASTRUN_RUNTIME_DIR", "/run/user/1000", 1);
  CHECK_FALSE(runs::are_places_near());
  ::unsetenv("ELASTRUN_RUNTIME_DIR");
  if (before != nullptr) ::setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
}

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

/// The entry of an agent that has gone, and had this worker.
runs::RunEntry gone_with(const runs::RunWorker& worker) {
  auto entry = own_entry();
  entry.start_time -= 1;
  entry.agent_id = "node_7_test";
  entry.workers = {worker};
  return entry;
}

runs::RunEntry entry_of(const Session& session) {
  return gone_with({0, 0, session.leader, "", session.start_time});
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
struct Registry : Folder {
  explicit Registry(const runs::RunEntry& entry) { write_file(file(), runs::encode(entry)); }
  std::string file() const { return path + "/one.json"; }
  process::ProcessTable left() const {
    const auto dead = runs::list_dead_runs({path});
    return dead.empty() ? process::ProcessTable() : dead[0].left;
  }
  /// Whether the run is kept although nothing of it is certain: somebody else is to look.
  bool is_unsure() const { return left().empty() && fs::exists(file()); }
};

std::size_t left_of(const runs::RunEntry& entry) {
  return Registry(entry).left().size();
}

}  // namespace

TEST_CASE("leftovers: what is in a worker's session, with the mark of its agent, is the run's") {
  const Session session(kMark);
  const auto left = Registry(entry_of(session)).left();
  REQUIRE(left.size() == 1);
  CHECK(left[0].pid == session.left);
  CHECK(process::names_of(left) == std::to_string(session.left) + " (cat)");
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
  CHECK(Registry(gone_with({0, 0, own, "", leader ? leader->start_time : 1})).is_unsure());
}

TEST_CASE("leftovers: who has started the one that looks is spared, in whatever session") {
  const pid_t starter = ::fork();
  if (starter == 0) {
    ::setsid();
    const pid_t child = ::fork();
    if (child == 0) {
      ::setsid();
      const auto parent = process::read_process(::getppid());
      const auto entry = gone_with({0, 0, parent->pid, "", parent->start_time});
      const bool spared = Registry(entry).is_unsure();
      ::_exit(spared ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  int status = 1;
  ::waitpid(starter, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("leftovers: a run is forgotten when all that it left is gone, and not before") {
  const Session session(kMark);
  const Registry registry(entry_of(session));
  CHECK(runs::list_runs({registry.path}).empty());
  REQUIRE(runs::list_dead_runs({registry.path}).size() == 1);
  CHECK(session.lives());
  const auto ended = runs::end_dead_runs({registry.path}, 60s);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].entry.run_id == "night");
  CHECK(ended[0].left.size() == 1);
  CHECK(ended[0].alive.empty());
  CHECK_FALSE(session.lives());
  CHECK_FALSE(fs::exists(registry.file()));
  CHECK(runs::end_dead_runs({registry.path}, 60s).empty());
}

TEST_CASE("leftovers: a stranger in the session is left alone, and the entry goes") {
  const Session session("SOMETHING=else");
  const Registry registry(entry_of(session));
  CHECK(runs::end_dead_runs({registry.path}, 60s).empty());
  CHECK(session.lives());
  CHECK_FALSE(fs::exists(registry.file()));
}

TEST_CASE("leftovers: a run whose agent lives is nobody's business") {
  const Session session(kMark);
  auto entry = entry_of(session);
  entry.start_time += 1;
  const Registry registry(entry);
  CHECK(runs::end_dead_runs({registry.path}, 60s).empty());
  CHECK(session.lives());
  CHECK(fs::exists(registry.file()));
}

TEST_CASE("leftovers: who hangs in the kernel is not read, and the entry stays until he can be") {
  HungWorker worker;
  const auto entry =
      gone_with({0, 0, worker.pid, "", process::read_process(worker.pid)->start_time});
  const Registry registry(entry);
  CHECK(registry.is_unsure());
  CHECK(runs::end_dead_runs({registry.path}, 60s).empty());
  CHECK(fs::exists(registry.file()));
  worker.end();
  CHECK(runs::end_dead_runs({registry.path}, 60s).empty());
  CHECK_FALSE(fs::exists(registry.file()));
}
