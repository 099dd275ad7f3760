// SPDX-License-Identifier: Apache-2.0
#include "files/whole_file.hpp"

#include "core/unique_fd.hpp"
#include "support/scratch.hpp"

#include <algorithm>
#include <array>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::files;
using test::content;
using test::Scratch;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kStranger = 65533, kNobody = 65534;

std::string refusal(const std::string& path, const std::string& folder) {
  return "cannot write " + path + ": it belongs to user 65533, and everybody may put files into " +
         folder + "; have it removed, or choose another path";
}

/// A folder of everybody's, as /tmp, with something in it that a stranger has put there.
struct Everybodys : Scratch {
  Everybodys() { REQUIRE(::chmod(path.c_str(), 01777) == 0); }
  std::string give_away(const std::string& name) const {
    const auto file = path + "/" + name;
    REQUIRE(::lchown(file.c_str(), kStranger, kStranger) == 0);
    return file;
  }
  std::string refusal_of(const std::string& file) const { return refusal(file, path); }
};

bool is_root() {
  if (::geteuid() == 0) return true;
  MESSAGE("not tested: only root can make files of other users");
  return false;
}

/// What put_file() says against it; empty: it was done.
std::string told_of(const std::string& path) {
  const auto put = put_file(path, "new", 0644);
  return put ? "" : put.error().text;
}

/// What a process of that user is told by put_file(); empty: it was done.
std::string put_as(uid_t user, const std::string& path) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_user = ::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0;
    const std::string text = is_user ? told_of(path) : "still root";
    const auto told = ::write(pipe[1], text.data(), text.size());
    ::_exit(told < 0 ? 1 : 0);
  }
  ::close(pipe[1]);
  std::string text(1000, '\0');
  const auto size = ::read(pipe[0], text.data(), text.size());
  ::close(pipe[0]);
  ::waitpid(child, nullptr, 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

std::ptrdiff_t files_in(const std::string& path) {
  return std::distance(fs::directory_iterator(path), fs::directory_iterator());
}

}  // namespace

TEST_CASE("whole file: it is made, then replaced, and no draft stays") {
  const Scratch place;
  const auto file = place.path + "/report.json";
  REQUIRE(put_file(file, "old and long", 0644));
  const std::ifstream reader(file);
  REQUIRE(put_file(file, "new", 0644));
  CHECK(content(file) == "new");
  std::ostringstream seen;
  seen << reader.rdbuf();
  CHECK(seen.str() == "old and long");  // who had it open reads on in the old one
  CHECK(files_in(place.path) == 1);
}

TEST_CASE("whole file: a symbolic link stays, and what it leads to is replaced") {
  const Scratch place;
  REQUIRE(put_file(place.path + "/target", "old", 0644));
  fs::create_symlink("target", place.path + "/link");
  REQUIRE(put_file(place.path + "/link", "new", 0644));
  CHECK(fs::is_symlink(place.path + "/link"));
  CHECK(content(place.path + "/target") == "new");
}

TEST_CASE("whole file: what a dangling link leads to is made") {
  const Scratch place;
  fs::create_directory(place.path + "/there");
  fs::create_symlink("there/second", place.path + "/first");
  fs::create_symlink("target", place.path + "/there/second");
  REQUIRE(put_file(place.path + "/first", "new", 0644));
  CHECK(fs::is_symlink(place.path + "/first"));
  CHECK(fs::is_symlink(place.path + "/there/second"));
  CHECK(content(place.path + "/there/target") == "new");
  fs::create_symlink("loop", place.path + "/loop");
  REQUIRE(put_file(place.path + "/loop", "new", 0644));  // leads nowhere: replaced
  CHECK(content(place.path + "/loop") == "new");
}

TEST_CASE("whole file: a stranger's link in a folder of everybody's is not followed") {
  if (!is_root()) return;
  const Everybodys place;
  const Scratch apart;
  REQUIRE(put_file(apart.path + "/there", "old", 0644));
  for (const auto* name : {"there", "absent"}) {
    const auto target = apart.path + "/" + name;
    fs::create_symlink(target, place.path + "/" + name);
    const auto link = place.give_away(name);
    const auto before = content(target);
    CHECK(told_of(link) == place.refusal_of(link));
    CHECK(content(target) == before);
    REQUIRE(::chown(place.path.c_str(), kStranger, kStranger) == 0);  // the folder's owner may
    CHECK(put_file(link, "new", 0644));
    CHECK(content(target) == "new");
    REQUIRE(::chown(place.path.c_str(), 0, 0) == 0);
  }
  CHECK(files_in(apart.path) == 2);
}

TEST_CASE("open by name: neither a stranger's link nor their file is appended to or emptied") {
  if (!is_root()) return;
  const Everybodys place;
  const Scratch apart;
  REQUIRE(put_file(apart.path + "/there", "old", 0644));
  REQUIRE(put_file(place.path + "/file", "old", 0644));
  fs::create_symlink(apart.path + "/there", place.path + "/link");
  fs::create_symlink(apart.path, place.path + "/folder");
  const auto link = place.give_away("link"), file = place.give_away("file"),
             folder = place.give_away("folder");
  for (const int flags : {O_WRONLY | O_CREAT | O_TRUNC, O_RDWR | O_CREAT | O_APPEND, O_WRONLY}) {
    for (const auto& [path, foreign] :
         {std::pair(link, link), {file, file}, {folder + "/there", folder}, {folder, folder}}) {
      errno = 0;
      const auto opened = open_by_name(path, flags, 0600);
      REQUIRE_FALSE(opened);
      CHECK(errno == EACCES);
      CHECK(opened.error().text == place.refusal_of(foreign));
    }
  }
  CHECK(content(apart.path + "/there") == "old");
  CHECK(content(file) == "old");
  CHECK(files_in(apart.path) == 1);
}

TEST_CASE("open by name: own links are followed, a file is emptied or appended to") {
  const Scratch place;
  REQUIRE(put_file(place.path + "/target", "old", 0644));
  fs::create_symlink("target", place.path + "/link");
  auto opened = open_by_name(place.path + "/link", O_WRONLY | O_APPEND);
  REQUIRE(opened);
  CHECK(::write(opened->get(), "er", 2) == 2);
  CHECK(content(place.path + "/target") == "older");
  CHECK((::fcntl(opened->get(), F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE(open_by_name(place.path + "/link", O_WRONLY | O_TRUNC));
  CHECK(content(place.path + "/target").empty());
  REQUIRE(open_by_name("/dev/stderr", O_WRONLY | O_APPEND));
  CHECK_FALSE(open_by_name(place.path + "/absent", O_WRONLY));
  CHECK(errno == ENOENT);
}

TEST_CASE("whole file: a stranger's file in a folder of everybody's is not written") {
  if (!is_root()) return;
  const Everybodys place;
  REQUIRE(put_file(place.path + "/report", "old", 0644));
  REQUIRE(::chmod((place.path + "/report").c_str(), 0666) == 0);
  const auto file = place.give_away("report");
  SUBCASE("by root, who would give the stranger what it writes") {
    CHECK(told_of(file) == place.refusal_of(file));
  }
  SUBCASE("by a user who could write it in place") {
    CHECK(put_as(kNobody, file) == place.refusal_of(file));
  }
  SUBCASE("under the name of a link of our own") {
    fs::create_symlink("report", place.path + "/link");
    CHECK(told_of(place.path + "/link") == place.refusal_of(file));
    fs::remove(place.path + "/link");
  }
  CHECK(content(file) == "old");
  CHECK(files_in(place.path) == 1);
}

TEST_CASE("whole file: a stranger's FIFO in a folder of everybody's is not written to") {
  if (!is_root()) return;
  const Everybodys place;
  REQUIRE(::mkfifo((place.path + "/fifo").c_str(), 0666) == 0);
  const auto fifo = place.give_away("fifo");
  const UniqueFd reader(::open(fifo.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  CHECK(told_of(fifo) == place.refusal_of(fifo));
  CHECK(put_as(kNobody, fifo) == place.refusal_of(fifo));
  char byte = 0;
  CHECK(::read(reader.get(), &byte, 1) < 0);
}

TEST_CASE("whole file: what is not a stranger's, or not in everybody's folder, is written") {
  if (!is_root()) return;
  const Everybodys place;
  REQUIRE(put_file(place.path + "/report", "old", 0644));
  REQUIRE(::chmod((place.path + "/report").c_str(), 0666) == 0);
  const auto file = place.give_away("report");
  SUBCASE("its owner's") {
    CHECK(put_as(kStranger, file) == "");
  }
  SUBCASE("that of the folder's owner") {
    REQUIRE(::chown(place.path.c_str(), kStranger, kStranger) == 0);
    CHECK(put_as(kNobody, file) == "");
  }
  SUBCASE("that in a folder of a group") {
    REQUIRE(::chmod(place.path.c_str(), 0777) == 0);
    CHECK(put_as(kNobody, file) == "");
  }
  CHECK(content(file) == "new");
}

TEST_CASE("whole file: a file that is replaced keeps its mode") {
  const Scratch place;
  const auto file = place.path + "/report.json";
  REQUIRE(put_file(file, "old", 0644));
  for (const mode_t mode : {0600u, 0666u}) {
    REQUIRE(::chmod(file.c_str(), mode) == 0);
    REQUIRE(put_file(file, "new", 0644));
    struct stat info {};
    REQUIRE(::stat(file.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == mode);
  }
}

TEST_CASE("whole file: in a folder that may not be changed, the file is written in place") {
  const Scratch place;
  const auto file = place.path + "/report.json", other = place.path + "/other";
  REQUIRE(put_file(file, "old and long", 0644));
  REQUIRE(put_file(other, "locked", 0444));
  REQUIRE(::chmod(place.path.c_str(), 0555) == 0);
  // Root may change all: this thread is somebody else for a moment.
  const bool root = ::geteuid() == 0;
  for (const auto& path : {file, other, place.path}) {
    if (root) REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
  }
  if (root) ::setfsuid(65534);
  const auto put = put_file(file, "new", 0644);
  const auto locked = put_file(other, "new", 0644);
  const auto absent = put_file(place.path + "/absent", "new", 0644);
  if (root) ::setfsuid(0);
  REQUIRE(::chmod(place.path.c_str(), 0755) == 0);
  CHECK(put);
  CHECK(content(file) == "new");
  CHECK_FALSE(locked);
  CHECK(content(other) == "locked");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().text == "cannot write " + place.path + "/absent: Permission denied");
  CHECK(files_in(place.path) == 2);
}

TEST_CASE("whole file: a device is written to, and stays one") {
  const Scratch place;
  CHECK(is_written_to("/dev/null"));
  CHECK(is_written_to("/dev/stdout"));
  CHECK_FALSE(is_written_to(place.path + "/absent"));
  CHECK_FALSE(is_written_to(place.path));
  REQUIRE(put_file("/dev/null", "text", 0644));
  CHECK(fs::is_character_file("/dev/null"));
  // By a link, as an administrator may have put it there.
  fs::create_symlink("/dev/null", place.path + "/link");
  REQUIRE(put_file(place.path + "/link", "text", 0644));
  CHECK(fs::is_character_file(place.path + "/link"));
  const auto full = put_file("/dev/full", "text", 0644);
  REQUIRE_FALSE(full);
  CHECK(full.error().text == "cannot write /dev/full: No space left on device");
}

TEST_CASE("whole file: what cannot be written is an error that names it, and leaves nothing") {
  const Scratch place;
  const auto missing = put_file(place.path + "/no/report.json", "text", 0644);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().text ==
        "cannot write " + place.path + "/no/report.json: No such file or directory");
  CHECK_FALSE(put_file(place.path, "text", 0644));
  CHECK(files_in(place.path) == 0);
  CHECK(fs::is_directory(place.path));
}

TEST_CASE("whole file: a word is put before the ending of the name") {
  CHECK(with_word("out/report.json", "node1") == "out/report.node1.json");
  CHECK(with_word("report", "node1") == "report.node1");
  CHECK(with_word("a.b/report", "n") == "a.b/report.n");
  CHECK(with_word("/tmp/.hidden", "n") == "/tmp/.hidden.n");
}

TEST_CASE("whole file: what a descriptor has open is known under every name, and nothing else") {
  const Scratch place;
  const auto file = place.path + "/out", other = place.path + "/other";
  REQUIRE(put_file(other, "same text", 0644));
  REQUIRE(put_file(file, "same text", 0644));
  fs::create_symlink(file, place.path + "/link");
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(fd);
  CHECK(is_open_at(file, fd.get()));
  CHECK(is_open_at(place.path + "/link", fd.get()));
  CHECK(is_open_at("/proc/self/fd/" + std::to_string(fd.get()), fd.get()));
  CHECK_FALSE(is_open_at(other, fd.get()));
  CHECK_FALSE(is_open_at(place.path + "/nothing", fd.get()));
  CHECK_FALSE(is_open_at(file, -1));
}
