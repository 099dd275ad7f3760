// SPDX-License-Identifier: Apache-2.0
#include "core/unique_fd.hpp"
#include "support/loop.hpp"
#include "support/scratch.hpp"
#include "timer/watchdog.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace elastrun;
using namespace elastrun::timer;
using namespace std::chrono_literals;

namespace {

struct Reader {
  boost::asio::io_context loop;
  std::vector<std::string> lines;
  std::unique_ptr<RequestPipe> pipe;

  explicit Reader(const std::string& path = {}) {
    auto place = RequestPlace::make(path);
    REQUIRE(place);
    pipe = std::make_unique<RequestPipe>(
        loop, std::move(*place), [this](std::string_view line) { lines.emplace_back(line); });
  }
  void until(std::size_t count) {
    test::run_until(loop, [&] { return lines.size() >= count; });
  }
};

/// As torch's client does it.
bool write_line(const std::string& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

TEST_CASE("request pipe: V6, all of 10 processes with 10 nested scopes each are counted") {
  Reader reader;
  std::vector<pid_t> children;
  for (int i = 0; i < 10; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool all = true;
      for (int step = 0; step < 20; ++step) {
        const int scope = step < 10 ? step : 19 - step;
        all = all && write_line(reader.pipe->path(),
                                fmt::format("{{\"version\": 1, \"pid\": {}, \"scope_id\": \"s{}\", "
                                            "\"expiration_time\": {}, \"signal\": 9}}\n",
                                            ::getpid(), scope, step < 10 ? 4e9 : -1.0));
      }
      ::_exit(all ? 0 : 1);
    }
    children.push_back(child);
  }
  reader.until(200);
  for (const auto child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  Deadlines deadlines;
  for (const auto& line : reader.lines) {
    const auto request = parse_torch_request(line, TimePoint{}, WallTime{});
    REQUIRE(request);
    deadlines.apply(*request);
  }
  CHECK(deadlines.size() == 0);
  CHECK(reader.lines.size() == 200);
}

TEST_CASE("request pipe: who holds it open, or writes half a line, holds up nobody") {
  Reader reader;
  const UniqueFd silent(::open(reader.pipe->path().c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(silent);
  CHECK(write_line(reader.pipe->path(), "one\ntw"));
  reader.until(1);
  CHECK(write_line(reader.pipe->path(), "o\n"));
  reader.until(2);
  CHECK(reader.lines == std::vector<std::string>{"one", "two"});
}

TEST_CASE("request pipe: writers may leave and come again; what is there can be read at once") {
  Reader reader;
  CHECK(write_line(reader.pipe->path(), "one\n"));
  reader.until(1);
  test::run_ready(reader.loop);
  CHECK(write_line(reader.pipe->path(), "two\n"));
  reader.pipe->catch_up();
  CHECK(reader.lines.size() == 2);
}

TEST_CASE("request pipe: only our user writes to it, and nothing is left of it") {
  std::string path, folder;
  {
    const Reader reader;
    path = reader.pipe->path();
    folder = reader.pipe->own_folder();
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK(S_ISFIFO(info.st_mode));
    CHECK((info.st_mode & 0777) == 0600);
  }
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("request pipe: at a path that was given, in place of an old FIFO but of nothing else") {
  const test::Scratch folder;
  const auto path = folder.path + "/timers";
  REQUIRE(::mkfifo(path.c_str(), 0644) == 0);
  {
    Reader reader(path);
    CHECK(reader.pipe->path() == path);
    CHECK(write_line(path, "one\n"));
    reader.until(1);
  }
  CHECK_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "kept";
  const auto refused = RequestPlace::make(path);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text == path + " is there already, and is not our FIFO");
  CHECK(std::filesystem::file_size(path) == 4);
  CHECK_FALSE(RequestPlace::make(folder.path + "/none/timers"));
}

TEST_CASE("request pipe: that of an agent that lives is not taken from it") {
  // A worker that is an agent itself has the path in its environment.
  Reader reader;
  const auto path = reader.pipe->path();
  const auto refused = RequestPlace::make(path);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text == path + " is that of another agent, which reads it");
  CHECK(write_line(path, "one\n"));
  reader.until(1);
}

namespace {

const TimePoint kNow(100s);
const WallTime kWall(1'763'690'000s);

Result<Request> parse(std::string_view line) {
  return parse_torch_request(line, kNow, kWall);
}

// As torch 2.13 writes it.
const std::string kAcquire =
    R"({"version": 1, "pid": 12345, "scope_id": "train.py#128", "expiration_time": 1763690002.5, )"
    R"("signal": 9})";
const std::string kRelease =
    R"({"version": 1, "pid": 12345, "scope_id": "train.py#128", "expiration_time": -1, )"
    R"("signal": 0})";

std::string with(std::string text, std::string_view what, std::string_view by) {
  return text.replace(text.find(what), what.size(), by);
}

}  // namespace

TEST_CASE("torch request: an acquisition gets a deadline of the monotonic clock") {
  const auto request = parse(kAcquire);
  REQUIRE(request);
  CHECK(request->worker == 12345);
  CHECK(request->scope == "train.py#128");
  CHECK(request->expiry == kNow + 2500ms);
  CHECK(request->armed == kNow);
  CHECK(request->signal == 9);
}

TEST_CASE("torch request: a negative expiration is a release") {
  const auto request = parse(kRelease);
  REQUIRE(request);
  CHECK_FALSE(request->expiry);
  CHECK(request->signal == 0);
}

TEST_CASE("torch request: a deadline in the past has expired now; none is out of range") {
  CHECK(parse(with(kAcquire, "1763690002.5", "5"))->expiry == kNow);
  CHECK(parse(with(kAcquire, "1763690002.5", "0.0"))->expiry == kNow);
  CHECK(parse(with(kAcquire, "1763690002.5", "1e300"))->expiry > kNow + 24h * 3600);
  CHECK(parse(with(kAcquire, "1763690002.5", "9223372036854775807"))->expiry > kNow);
}

TEST_CASE("torch request: escaped text, other members and a negative signal are understood") {
  const auto request =
      parse(R"({"pid": 1, "scope_id": "\u00e9\"", "expiration_time": 1763690001, "signal": -5,)"
            R"( "more": [1]})");
  REQUIRE(request);
  CHECK(request->scope == "\u00e9\"");
  CHECK(request->signal == 0);
}

TEST_CASE("torch request: what is no request is refused") {
  for (const char* line :
       {"", "{}", "[]", "null", "7", "nonsense", "\xff\xfe", "{\"pid\": 1}",
        R"({"pid": 0, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": -1, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": 4294967297, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": 1.5, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": "1", "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": 1, "scope_id": 7, "expiration_time": 1, "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": "1", "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": NaN, "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": null, "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": 1, "signal": 65})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": 1})"}) {
    CAPTURE(line);
    REQUIRE_FALSE(parse(line));
    CHECK(parse(line).error().code == Code::Protocol);
  }
}

TEST_CASE("torch request: a line cut at any length is refused, and costs nobody else's") {
  for (std::size_t length = 1; length < kAcquire.size(); ++length) {
    CAPTURE(length);
    const auto half = kAcquire.substr(0, length);
    CHECK_FALSE(parse(half));
    // Its writer has died; the next one's bytes follow at once.
    const auto other = parse(half + with(kAcquire, "12345", "777"));
    REQUIRE(other);
    CHECK(other->worker == 777);
  }
}

TEST_CASE("request pipe: pieces of any size give the same lines") {
  const std::string text = kAcquire + "\n\nhalf\n" + kRelease + "\n";
  Reader reader;
  for (std::size_t size = 1; size < text.size(); ++size) {
    for (std::size_t at = 0; at < text.size(); at += size) {
      CHECK(write_line(reader.pipe->path(), std::string_view(text).substr(at, size)));
      reader.pipe->catch_up();
    }
    CHECK(std::exchange(reader.lines, {}) ==
          std::vector<std::string>{kAcquire, "", "half", kRelease});
  }
}

TEST_CASE("request pipe: of a line that is too long only the beginning is kept") {
  Reader reader;
  const auto write = [&](const std::string& text) {
    CHECK(write_line(reader.pipe->path(), text));
    reader.pipe->catch_up();
  };
  write(std::string(4097, 'x') + "\n");
  for (int i = 0; i < 9; ++i) write(std::string(1 << 16, 'y'));
  write("z\nnext\n");
  CHECK(reader.lines ==
        std::vector<std::string>{std::string(4097, 'x'), std::string(4097, 'y'), "next"});
}
