// SPDX-License-Identifier: Apache-2.0
#include "timer/watchdog.hpp"

#include <algorithm>
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
  CHECK(deadlines.next() == at(60s));
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

namespace {

const std::string kScope = "/usr/lib/python3.11/contextlib.py#137";

/// One process whose timers have no scope of their own, as the agent sees it.
struct Process {
  Deadlines deadlines;
  TimePoint now{100s};
  std::string scope = kScope;

  void apply(std::optional<TimePoint> expiry) {
    deadlines.apply({7, scope, expiry, SIGKILL, 0, now, true});
  }
  void begin(Duration after) { apply(now + after); }
  void end() { apply({}); }
  std::optional<Duration> left() const {
    const auto next = deadlines.next();
    return next ? std::optional(*next - now) : std::nullopt;
  }
};

}  // namespace

TEST_CASE("nested scopes: the scope that torch makes up is known") {
  CHECK(is_torch_default(kScope));
  CHECK(is_torch_default("contextlib.py#141"));
  for (const char* scope : {"", "train.py#5", "contextlib.py#", "contextlib.py#x", "contextlib.py",
                            "my_contextlib.py#5", "contextlib.py#137 "}) {
    CAPTURE(scope);
    CHECK_FALSE(is_torch_default(scope));
  }
}

TEST_CASE("nested scopes: the end of an inner timer leaves the outer one armed") {
  Process process;
  process.begin(60s);
  process.begin(2s);
  CHECK(process.left() == 2s);
  process.end();
  CHECK(process.left() == 60s);
  process.end();
  CHECK_FALSE(process.left());
  process.end();  // one too many
  CHECK_FALSE(process.left());
}

TEST_CASE("nested scopes: an inner timer that lasts longer suspends the outer one") {
  Process process;
  process.begin(2s);
  process.now += 1s;
  process.begin(60s);
  CHECK(process.left() == 60s);
  process.now += 10s;
  process.end();
  CHECK(process.left() == 50s);  // not for earlier than that: threads may have ended in any order
  process.end();
  CHECK_FALSE(process.left());
}

TEST_CASE("nested scopes: V4, a function that calls itself arms its timer again") {
  Process process;
  for (int depth = 0; depth < 4; ++depth) process.begin(100ms);
  for (int depth = 0; depth < 4; ++depth) {
    process.now += 50ms;
    CHECK(process.deadlines.take_expired(process.now).empty());
    process.end();
  }
  CHECK_FALSE(process.left());
  for (int depth = 0; depth < 2; ++depth) process.begin(100ms);
  process.now += 200ms;
  CHECK(process.deadlines.take_expired(process.now).size() == 1);
}

TEST_CASE("nested scopes: a scope that was given is one timer, as with torch") {
  Process process;
  process.scope = "loop";
  process.begin(60s);
  process.begin(2s);
  CHECK(process.deadlines.size() == 1);
  process.end();
  CHECK_FALSE(process.left());
}

TEST_CASE("nested scopes: a worker that has ended is forgotten") {
  Process process;
  process.begin(60s);
  process.deadlines.forget(8);
  process.deadlines.forget(7);
  process.begin(2s);
  process.end();
  CHECK_FALSE(process.left());
}

TEST_CASE("nested scopes: without an end it stays bounded") {
  Process process;
  for (int i = 0; i < 5000; ++i) process.begin(std::chrono::seconds(10000 - i));
  CHECK(process.deadlines.size() <= 1001);
}

TEST_CASE("nested scopes: however blocks of threads overlap, nobody is killed who is in time") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Process process;
    std::vector<TimePoint> open;  // the true deadlines
    for (int i = 0; i < 40; ++i) {
      process.now += Duration(random() % 50);
      if (open.empty() || random() % 2 == 0) {
        const Duration after(1 + random() % 300);
        open.push_back(process.now + after);
        process.begin(after);
      } else {
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(random() % open.size()));
        process.end();
      }
      REQUIRE(process.deadlines.size() <= open.size());
      if (!process.deadlines.next()) continue;
      REQUIRE(*process.deadlines.next() >= *std::ranges::min_element(open));
    }
  }
}
