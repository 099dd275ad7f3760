// SPDX-License-Identifier: Apache-2.0
#include "core/awake_clock.hpp"
#include "support/fake_clock.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace std::chrono_literals;

TEST_CASE("pause-tolerant alarm: it rings at its time, and a little late as well") {
  test::FakeClock clock;
  PauseTolerantAlarm alarm(clock, 5s);
  int rung = 0;
  alarm.arm(clock.now() + 10s, [&rung] { ++rung; });
  clock.advance(9s);
  CHECK(rung == 0);
  clock.advance(1s);
  CHECK(rung == 1);
  alarm.arm(clock.now() + 10s, [&rung] { ++rung; });
  clock.pause(14s);
  clock.advance(0s);
  CHECK(rung == 2);
}

TEST_CASE("pause-tolerant alarm: after a pause beyond its time it waits for what comes first") {
  test::FakeClock clock;
  PauseTolerantAlarm alarm(clock, 5s);
  int rung = 0;
  alarm.arm(clock.now() + 10s, [&rung] { ++rung; });
  clock.pause(60s);
  clock.advance(4s);
  CHECK(rung == 0);
  SUBCASE("and rings if nothing does") {
    clock.advance(1s);
    CHECK(rung == 1);
  }
  SUBCASE("and is not needed any more if something does") {
    alarm.disarm();
    clock.advance(60s);
    CHECK(rung == 0);
  }
}
