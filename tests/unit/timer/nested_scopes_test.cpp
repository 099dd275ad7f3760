// SPDX-License-Identifier: Apache-2.0
#include "timer/watchdog.hpp"

#include <doctest/doctest.h>
#include <random>

using namespace elastrun;
using namespace elastrun::timer;
using namespace std::chrono_literals;

namespace {

const std::string kScope = "/usr/lib/python3.11/contextlib.py#137";

/// One process whose timers have no scope of their own, as the agent sees it.
struct Process {
  NestedScopes scopes;
  Deadlines deadlines;
  TimePoint now{100s};
  std::string scope = kScope;

  void apply(std::optional<TimePoint> expiry) {
    for (const auto& one : scopes.translate({7, scope, expiry, SIGKILL, 0, now}, now)) {
      deadlines.apply(one);
    }
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
  process.scopes.forget(8);
  process.scopes.forget(7);
  process.begin(2s);
  process.end();
  CHECK(process.deadlines.has(7, kScope, 1) == false);
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
