// SPDX-License-Identifier: Apache-2.0
#include "logs/layout.hpp"

#include "support/logged_text.hpp"
#include "support/scratch.hpp"

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::logs;
namespace fs = std::filesystem;

namespace {

struct LayoutFolder {
  LayoutFolder() { ::setenv("TMPDIR", path.c_str(), 1); }
  ~LayoutFolder() { ::unsetenv("TMPDIR"); }
  const elastrun::test::Scratch scratch;
  const fs::path path = scratch.path;
};

void write(const fs::path& path, std::string_view text) {
  std::ofstream(path) << text;
}

int entries(const fs::path& path) {
  return static_cast<int>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("layout: a run has the directories that torchrun makes") {
  const LayoutFolder scratch;
  auto layout = Layout::plan((scratch.path / "a/b c").string(), "job-7").value();
  CHECK(entries(scratch.path) == 0);
  CHECK(layout.journal().empty());
  const auto attempt = layout.make_attempt(0).value();
  const auto rank = layout.make_rank(attempt, 11).value();
  const std::string base = (scratch.path / "a/b c/job-7_").string();
  REQUIRE(rank.starts_with(base));
  CHECK(rank.substr(base.size() + 8) == "/attempt_0/11");
  CHECK(error_file(rank) == rank + "/error.json");
  CHECK(layout.journal() == layout.run_directory() + "/journal.jsonl");
  struct stat info {};
  REQUIRE(::stat(layout.run_directory().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(layout.make_attempt(1).value() == layout.run_directory() + "/attempt_1");
  CHECK(entries(scratch.path / "a/b c") == 1);
}

TEST_CASE("layout: a second start under one number keeps the logs of the first") {
  const LayoutFolder scratch;
  auto layout = Layout::plan(scratch.path.string(), "x").value();
  write(layout.make_attempt(0).value() + "/stdout.log", "old");
  CHECK(layout.make_attempt(0).value().ends_with("/attempt_0.1"));
  CHECK(layout.make_attempt(0).value().ends_with("/attempt_0.2"));
  CHECK(layout.make_attempt(1).value().ends_with("/attempt_1"));
  CHECK(fs::file_size(layout.run_directory() + "/attempt_0/stdout.log") == 3);
}

TEST_CASE("layout: /dev/null means no directories and an empty error file name") {
  const LayoutFolder scratch;
  auto layout = Layout::plan("/dev/null", "x").value();
  CHECK(layout.is_null());
  const auto attempt = layout.make_attempt(0).value();
  CHECK(attempt.empty());
  CHECK(error_file(layout.make_rank(attempt, 0).value()).empty());
  CHECK(layout.journal().empty());
  CHECK(layout.run_directory().empty());
}

TEST_CASE("layout: a log directory that is a file is refused in torchrun's words") {
  const LayoutFolder scratch;
  const auto taken = (scratch.path / "taken").string();
  write(taken, "text");
  const auto refused = Layout::plan(taken, "x");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text == "log_dir: " + taken + " is a file");
  CHECK_FALSE(Layout::plan(taken + "/below", "x"));
}

TEST_CASE("layout: a log directory that is a link to nothing is not there") {
  const LayoutFolder scratch;
  const auto link = (scratch.path / "link").string();
  fs::create_symlink("nowhere", link);
  for (const auto& given : {link, link + "/below"}) {
    const auto refused = Layout::plan(given, "x").value().make_attempt(0);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().text.starts_with("cannot make the directory " + given +
                                           ": No such file or directory; "));
  }
}

TEST_CASE("layout: a run id is made safe as a file name") {
  CHECK(file_name_of("a/b\nc..") == "a_b_c..");
  CHECK(file_name_of(std::string(1000, 'x')).size() == 200);
  const std::string whole(199, 'x');
  CHECK(file_name_of(whole + "\u00e4") == whole);
  const LayoutFolder scratch;
  auto layout = Layout::plan(scratch.path.string(), "../" + std::string(300, 'y')).value();
  REQUIRE(layout.make_run());
  CHECK(fs::path(layout.run_directory()).parent_path() == scratch.path);
}

TEST_CASE("layout: a temporary run goes at the end unless it holds something of use") {
  const LayoutFolder scratch;
  auto layout = Layout::plan("", "x").value();
  CHECK(layout.is_temporary());
  const auto rank = layout.make_rank(layout.make_attempt(0).value(), 0).value();
  REQUIRE(fs::path(layout.temporary_root()).parent_path() == scratch.path);
  CHECK(layout.temporary_root().find("/elastrun_") != std::string::npos);
  write(rank + "/stdout.log", "");
  write(layout.journal(), "{}");
  CHECK_FALSE(holds_something(layout.temporary_root()));
  CHECK(settle(layout.temporary_root(), true) == Fate::Removed);
  CHECK(entries(scratch.path) == 0);
}

TEST_CASE("layout: a place that cannot be used is skipped, as Python's tempfile does") {
  const LayoutFolder scratch;
  write(scratch.path / "file", "");
  const auto good = scratch.path / "good";
  fs::create_directory(good);
  elastrun::test::LoggedText log;
  std::string& said = log.text;
  for (const char* bad : {"/nowhere/at/all", "file", "/proc"}) {
    CAPTURE(bad);
    const auto place = *bad == '/' ? fs::path(bad) : scratch.path / bad;
    ::setenv("TMPDIR", place.c_str(), 1);
    ::setenv("TMP", good.c_str(), 1);
    auto layout = Layout::plan("", "x").value();
    CHECK(layout.make_run());
    CHECK(fs::path(layout.temporary_root()).parent_path() == good);
    CHECK(said.empty());  // another thread may have made it
    layout.say_remark();
    CHECK(said.contains("; files are in " + layout.temporary_root()));
    said.clear();
    layout.say_remark();
    CHECK(said.empty());
    ::setenv("TMP", place.c_str(), 1);
    auto on_disk = Layout::plan("", "x").value();
    CHECK(on_disk.make_run());
    CHECK(on_disk.temporary_root().starts_with("/tmp/elastrun_"));
    settle(on_disk.temporary_root(), false);
  }
  ::unsetenv("TMP");
}

TEST_CASE("layout: without TMPDIR a run of error files alone is made in memory") {
  const LayoutFolder scratch;
  ::unsetenv("TMPDIR");
  auto logs = Layout::plan("", "x").value();
  REQUIRE(logs.make_run());
  CHECK(logs.temporary_root().starts_with("/tmp/elastrun_"));
  settle(logs.temporary_root(), false);
  struct statfs info {};
  if (::statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS_MAGIC ||
      info.f_bavail * static_cast<std::uint64_t>(info.f_bsize) < 256 << 20) {
    MESSAGE("skipped: no memory file system at /dev/shm here");
    return;
  }
  auto errors = Layout::plan("", "x", Layout::Expected::ErrorFiles).value();
  REQUIRE(errors.make_run());
  CHECK(errors.temporary_root().starts_with("/dev/shm/elastrun_"));
  settle(errors.temporary_root(), false);
  CHECK_FALSE(fs::exists(errors.temporary_root()));
}

TEST_CASE("layout: what somebody has tidied away is made anew") {
  const LayoutFolder scratch;
  auto layout = Layout::plan("", "x").value();
  REQUIRE(layout.make_attempt(0));
  const std::string first = layout.temporary_root();
  fs::remove_all(first);
  const auto attempt = layout.make_attempt(1);
  REQUIRE(attempt);
  CHECK(fs::is_directory(*attempt));
  CHECK(layout.temporary_root() != first);
  CHECK(attempt->starts_with(layout.temporary_root()));
}

TEST_CASE("layout: a temporary root is announced before it exists") {
  const LayoutFolder scratch;
  auto layout = Layout::plan("", "x").value();
  std::string announced;
  layout.announce_temporary_root([&](const std::string& path) {
    CHECK_FALSE(fs::exists(path));
    announced = path;
  });
  REQUIRE(layout.make_run());
  CHECK(announced == layout.temporary_root());
}

TEST_CASE("layout: a temporary run with an error file stays after a failure only") {
  const LayoutFolder scratch;
  auto layout = Layout::plan("", "x").value();
  const auto rank = layout.make_rank(layout.make_attempt(0).value(), 0).value();
  write(error_file(rank), "{}");
  CHECK(settle(layout.temporary_root(), true) == Fate::Kept);
  CHECK(fs::exists(error_file(rank)));
  CHECK(settle(layout.temporary_root(), false) == Fate::Removed);
  CHECK(entries(scratch.path) == 0);
  CHECK(settle("", true) == Fate::Removed);
}

TEST_CASE("layout: what a worker has put into its own directory stays after a failure, too") {
  const LayoutFolder scratch;
  auto layout = Layout::plan("", "x").value();
  const auto rank = layout.make_rank(layout.make_attempt(0).value(), 0).value();
  for (const std::string& ours :
       {layout.agent_log(), layout.run_directory() + "/agent.2.log", layout.journal(),
        layout.report(), layout.run_directory() + "/checkpoint_steps.json"}) {
    write(ours, "{}");
  }
  CHECK_FALSE(holds_something(layout.temporary_root()));
  for (const auto& theirs : {rank + "/core.txt", layout.run_directory() + "/journal.log"}) {
    write(theirs, "");
    CHECK(holds_something(layout.temporary_root()));
    fs::remove(theirs);
  }
}

TEST_CASE(
    "layout: only a known kind of file system of this machine is taken for one that answers") {
  const LayoutFolder scratch;
  CHECK_FALSE(Layout::plan(scratch.path, "x").value().is_local());
  ::setenv("TMPDIR", "/proc", 1);
  CHECK_FALSE(Layout::plan("", "x").value().is_local());
  CHECK_FALSE(Layout::plan("/dev/null", "x").value().is_local());  // its channel is there
  ::unsetenv("TMPDIR");
  ::setenv("TEMP", "/proc", 1);  // and is not there
  CHECK(Layout::plan("/dev/null", "x").value().is_local());
  ::unsetenv("TEMP");
}
