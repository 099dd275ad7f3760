// SPDX-License-Identifier: Apache-2.0
#include "runs/registry.hpp"

#include <array>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
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
