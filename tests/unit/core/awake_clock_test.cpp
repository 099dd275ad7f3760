// SPDX-License-Identifier: Apache-2.0
#include "core/system_clock.hpp"
#include "support/fake_clock.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace std::chrono_literals;

namespace {

constexpr auto kLook = AwakeClock::kLook;

}  // namespace

TEST_CASE("awake clock: nothing is lost when nothing is due, and the farthest time is a time") {
  test::FakeClock real;
  AwakeClock clock(real);
  const auto start = clock.now();
  real.advance(1h);
  CHECK(clock.now() == start + 1h);
  const auto alarm = clock.make_alarm();
  alarm->arm(TimePoint::max(), [] { FAIL("it rings"); });
  real.pause(1h);
  CHECK(clock.now() == start + 1h + kLook);
  real.advance(10ms);
  CHECK(clock.now() == start + 1h + kLook + 10ms);
}

TEST_CASE("awake clock: a pause eats no wait, however long it is") {
  for (const auto pause : {0s, 1s, 9s, 3600s}) {
    CAPTURE(pause.count());
    test::FakeClock real;
    AwakeClock clock(real);
    const auto alarm = clock.make_alarm(), other = clock.make_alarm();
    bool rang = false, other_rang = false;
    alarm->arm(clock.now() + 8s, [&] { rang = true; });
    real.advance(1s + 1ms);
    real.pause(pause);
    // Whoever is heard before the alarm.
    other->arm(clock.now() + 1s, [&] { other_rang = true; });
    real.advance(999ms);
    CHECK_FALSE(other_rang);
    real.advance(kLook);
    CHECK(other_rang);
    real.advance(6s - 2 * kLook);  // of a pause, at most one may be counted
    CHECK_FALSE(rang);
    real.advance(2 * kLook);
    CHECK(rang);
    CHECK(real.armed() == 0);
  }
}

TEST_CASE("awake clock: alarms ring in their order, and one that rings may destroy all") {
  test::FakeClock real;
  auto clock = std::make_unique<AwakeClock>(real);
  auto first = clock->make_alarm(), second = clock->make_alarm(), third = clock->make_alarm();
  std::string order;
  second->arm(clock->now() + 2s, [&] {
    order += "2";
    first.reset();
    second.reset();
    third.reset();
    clock.reset();
  });
  first->arm(clock->now() + 1s, [&] { order += "1"; });
  third->arm(clock->now() + 3s, [&] { order += "3"; });
  real.advance(1h);
  CHECK(order == "12");
  CHECK(real.armed() == 0);
}

TEST_CASE("awake clock: an alarm forgets what it was armed for") {
  test::FakeClock real;
  AwakeClock clock(real);
  const auto alarm = clock.make_alarm();
  int rang = 0;
  alarm->arm(clock.now() + 1s, [&] { rang = 1; });
  alarm->arm(clock.now() - 1s, [&] { rang = 2; });
  CHECK(rang == 0);
  real.advance(0s);
  CHECK(rang == 2);
  alarm->arm(clock.now() + 1s, [&] { rang = 3; });
  alarm->disarm();
  CHECK(real.armed() == 0);
  real.advance(1h);
  CHECK(rang == 2);
}

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
