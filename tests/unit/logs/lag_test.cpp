// SPDX-License-Identifier: Apache-2.0
#include "logs/outlet.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <random>
#include <string>

using namespace elastrun::logs;

namespace {

std::uint64_t lines_in(std::string_view text) {
  return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

/// A queue behind a Lag, as Outlet has it, with a reader that takes what the schedule says.
struct Queue {
  Lag lag;
  std::size_t waiting = 0;
  std::uint64_t offered = 0, taken = 0, told = 0;

  void offer(const std::string& lines) {
    const auto size = lag.take_filed(lines, waiting);
    REQUIRE(size <= lines.size());
    REQUIRE((size == 0 || lines[size - 1] == '\n'));  // whole lines only
    offered += lines_in(lines);
    taken += lines_in(std::string_view(lines).substr(0, size));
    waiting += size;
  }
  void tell(bool now) {
    const auto gap = lag.gap_to_tell(waiting, now);
    CHECK(gap.lost == 0);
    told += gap.filed;
  }
};

}  // namespace

TEST_CASE("lag: each line is taken or counted, once, and what waits is bounded") {
  for (unsigned seed = 0; seed < 25; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto upto = [&](std::size_t most) {
      return std::uniform_int_distribution<std::size_t>(0, most)(random);
    };
    Queue queue;
    for (int step = 0; step < 100; ++step) {
      switch (upto(4)) {
        case 0:
          queue.waiting -= std::min(queue.waiting, upto(600'000));
          queue.tell(false);
          break;
        case 1:
          if (upto(9) == 0) queue.lag.skip();
          if (upto(9) == 0) queue.tell(true);
          break;
        default: {
          std::string lines;
          for (auto count = upto(40); count > 0; --count) {
            lines += std::string(upto(5000), 'x') + "\n";
          }
          queue.offer(lines);
        }
      }
      REQUIRE(queue.waiting <= Lag::kFiled);
      REQUIRE(queue.taken + queue.told <= queue.offered);
    }
    queue.waiting = 0;
    queue.tell(false);
    CHECK(queue.taken + queue.told == queue.offered);
    CHECK_FALSE(queue.lag.skipping());
    queue.offer("seen\n");
    CHECK(queue.waiting == 5);
  }
}

TEST_CASE("lag: after the first line left out all are, until the reader has caught up") {
  Lag lag;
  const std::string line = std::string(999, 'x') + "\n";
  CHECK(lag.take_filed(line + line, Lag::kFiled - 1500) == 1000);
  CHECK(lag.take_filed("short\n", Lag::kFiled / 2) == 0);
  CHECK(lag.gap_to_tell(Lag::kCaughtUp + 1, false).empty());
  CHECK(lag.gap_to_tell(Lag::kCaughtUp, false).filed == 2);
  CHECK(lag.gap_to_tell(0, false).empty());
  CHECK(lag.take_filed("short\n", 0) == 6);
}

TEST_CASE("lag: a gap told early does not end it") {
  Lag lag;
  lag.skip();
  CHECK(lag.take_filed("a\nb\n", Lag::kFiled / 2) == 0);
  CHECK(lag.gap_to_tell(Lag::kFiled / 2, true).filed == 2);
  CHECK(lag.skipping());
  CHECK(lag.take_filed("c\n", Lag::kFiled / 2) == 0);
  CHECK(lag.gap_to_tell(0, false).filed == 1);
}

TEST_CASE("lag: the agent's own words have room when workers have none, and the verdict always") {
  Lag lag;
  const std::string text(2 << 20, 'x');
  CHECK(lag.take(text, Lag::kOutput, Lag::Weight::Output) == 0);
  CHECK(lag.take("a line\n", Lag::kOutput, Lag::Weight::Own) == 7);
  CHECK(lag.take(text, Lag::kOwn - 10, Lag::Weight::Own) == 10);
  CHECK(lag.take(text, Lag::kOwn + 10, Lag::Weight::Verdict) == text.size());
  CHECK(lag.gap_to_tell(0, false).lost == 2);
}
