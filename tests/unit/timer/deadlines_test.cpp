// SPDX-License-Identifier: Apache-2.0
#include "timer/watchdog.hpp"

#include <doctest/doctest.h>
#include <random>

using namespace elastrun;
using namespace elastrun::timer;
using namespace std::chrono_literals;

namespace {

TimePoint at(Duration since_start) {
  return TimePoint(since_start);
}

Deadlines with(std::initializer_list<Request> requests) {
  Deadlines deadlines;
  for (const auto& request : requests) deadlines.apply(request);
  return deadlines;
}

}  // namespace

TEST_CASE("deadlines: a timer expires at its time, not before, and only once") {
  auto deadlines = with({{7, "a", at(10s)}});
  CHECK(deadlines.next() == at(10s));
  CHECK(deadlines.take_expired(at(10s) - 1ns).empty());
  const auto expired = deadlines.take_expired(at(10s));
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].worker == 7);
  CHECK(expired[0].timers == std::vector<Expired>{{"a", at(10s), SIGKILL}});
  CHECK(expired[0].signal() == SIGKILL);
  CHECK(deadlines.take_expired(at(99s)).empty());
  CHECK_FALSE(deadlines.next());
}

TEST_CASE("deadlines: expired timers come by worker, the earliest first, others go with them") {
  auto deadlines = with({{7, "late", at(3s)},
                         {8, "x", at(2s)},
                         {7, "early", at(1s)},
                         {7, "not yet", at(60s)},
                         {9, "not yet", at(60s)}});
  const auto expired = deadlines.take_expired(at(4s));
  REQUIRE(expired.size() == 2);
  CHECK(expired[0].worker == 7);
  REQUIRE(expired[0].timers.size() == 2);
  CHECK(expired[0].timers[0].scope == "early");
  CHECK(expired[0].timers[1].scope == "late");
  CHECK(expired[1].worker == 8);
  CHECK(deadlines.size() == 1);
  CHECK(deadlines.has(9, "not yet"));
}

TEST_CASE("deadlines: the first timer with a signal decides how a worker is killed") {
  auto deadlines = with({{7, "a", at(1s), 0}, {7, "b", at(2s), 15}, {7, "c", at(3s), 9}});
  CHECK(deadlines.take_expired(at(3s)).at(0).signal() == 15);
  auto quiet = with({{7, "a", at(1s), -1}});
  CHECK(quiet.take_expired(at(1s)).at(0).signal() == 0);
}

TEST_CASE("deadlines: a timer that only tells leaves the others of its process armed") {
  auto deadlines = with({{7, "told", at(1s), 0}, {7, "kills", at(2s)}});
  CHECK(deadlines.take_expired(at(1s)).size() == 1);
  CHECK(deadlines.next() == at(2s));
  CHECK(deadlines.take_expired(at(2s)).at(0).signal() == SIGKILL);
}

TEST_CASE("deadlines: random requests agree with a plain table") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Deadlines deadlines;
    std::map<std::pair<std::int64_t, std::string>, TimePoint> table;
    TimePoint now{};
    for (int i = 0; i < 200; ++i) {
      now += Duration(random() % 100);
      const std::int64_t worker = random() % 4;
      const std::string scope(1, static_cast<char>('a' + random() % 3));
      if (random() % 3 == 0) {
        deadlines.apply({worker, scope, {}});
        table.erase({worker, scope});
      } else {
        const TimePoint expiry = now + Duration(random() % 1000);
        deadlines.apply({worker, scope, expiry});
        table[{worker, scope}] = expiry;
      }
      for (const auto& expired : deadlines.take_expired(now)) {
        for (const auto& timer : expired.timers) {
          REQUIRE(table.at({expired.worker, timer.scope}) == timer.expiry);
          REQUIRE(timer.expiry <= now);
        }
        std::erase_if(table, [&](const auto& one) { return one.first.first == expired.worker; });
      }
      REQUIRE(deadlines.size() == table.size());
      for (const auto& [key, expiry] : table) REQUIRE(expiry > now);
    }
  }
}
