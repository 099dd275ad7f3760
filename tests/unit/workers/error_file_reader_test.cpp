// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"
#include "support/fake_clock.hpp"
#include "support/fake_files.hpp"
#include "workers/group.hpp"

#include <deque>
#include <doctest/doctest.h>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::workers {
namespace {

using Found = ErrorFileReader::Found;
using Paths = std::vector<std::string>;

/// A file system whose answers a test gives by hand, and a reader that has it.
struct Slow {
  struct Asked {
    Paths paths;
    std::function<void(Found)> then;
  };
  test::FakeClock clock;
  std::deque<Asked> asked;
  int told = 0;
  ErrorFileReader reader{clock, [this](Paths paths, std::function<void(Found)> then) {
                           asked.push_back({std::move(paths), std::move(then)});
                         }};

  Slow() {
    log::set_writer([](void*, std::string_view) {}, nullptr);
  }
  ~Slow() { log::set_writer(nullptr, nullptr); }
  void look_at(Paths paths) {
    reader.look_at(std::move(paths), [this] { ++told; });
  }
  void answer(const std::string& text) {
    REQUIRE_FALSE(asked.empty());
    auto one = std::move(asked.front());
    asked.pop_front();
    one.then(Found(one.paths.size(), parse_error_file(text)));
  }
};

}  // namespace

TEST_CASE("error files: what was read is known, and who asked is told") {
  Slow slow;
  slow.look_at({"a", "b"});
  CHECK(slow.told == 0);
  CHECK_FALSE(slow.reader.of("a"));
  slow.answer("text");
  CHECK(slow.told == 1);
  REQUIRE(slow.reader.of("b"));
  CHECK(slow.reader.of("b")->raw == "text");
  CHECK_FALSE(slow.reader.of("c"));
}

TEST_CASE(
    "error files: those who ask meanwhile share the next reading, which has what came since") {
  Slow slow;
  slow.look_at({"a"});
  slow.look_at({"a", "b"});
  slow.look_at({"a", "b", "c"});
  CHECK(slow.asked.size() == 1);
  slow.answer("early");
  CHECK(slow.told == 1);
  REQUIRE(slow.asked.size() == 1);
  CHECK(slow.asked[0].paths == Paths{"a", "b", "c"});
  slow.answer("late");
  CHECK(slow.told == 3);
  CHECK(slow.reader.of("a")->raw == "late");
}

TEST_CASE("error files: one that is not answered for is waited for once, for a bounded time") {
  Slow slow;
  slow.look_at({"a"});
  slow.look_at({"a", "b"});
  slow.clock.advance(ErrorFileReader::kTimeLimit - std::chrono::milliseconds(1));
  CHECK(slow.told == 0);
  slow.clock.advance(std::chrono::milliseconds(1));
  CHECK(slow.told == 2);
  slow.look_at({"c"});
  CHECK(slow.told == 3);
  slow.answer("late");  // is not told again, but known
  CHECK(slow.told == 3);
  CHECK(slow.reader.of("a")->raw == "late");
  slow.look_at({"c"});
  CHECK(slow.told == 3);
  slow.answer("soon");
  CHECK(slow.told == 4);
  CHECK(slow.reader.of("c")->raw == "soon");
}

TEST_CASE("error files: an answer for a reader that has gone reaches nobody") {
  test::FakeClock clock;
  std::function<void(Found)> answer;
  int told = 0;
  {
    ErrorFileReader reader(clock, [&](const Paths&, auto then) { answer = std::move(then); });
    reader.look_at({"a"}, [&] { ++told; });
  }
  answer({parse_error_file("late")});
  clock.advance(2 * ErrorFileReader::kTimeLimit);
  CHECK(told == 0);
}

TEST_CASE("error files: without somebody to read them they are read at once") {
  test::FakeFiles files;
  files.add("one", "text");
  test::FakeClock clock;
  ErrorFileReader reader(clock, {});
  int told = 0;
  reader.look_at({files.root() + "/one", files.root() + "/two"}, [&] { ++told; });
  CHECK(told == 1);
  CHECK(reader.of(files.root() + "/one")->raw == "text");
  CHECK_FALSE(reader.of(files.root() + "/two"));
}

}  // namespace elastrun::workers
