// SPDX-License-Identifier: Apache-2.0
#include "core/awake_clock.hpp"

#include "support/fake_clock.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kStart{1h};
constexpr auto kLook = AwakeTime::kLook;

}  // namespace

TEST_CASE("awake time: it is that of the clock as long as the alarm is in time") {
  AwakeTime time;
  auto now = kStart;
  for (int i = 0; i < 100; ++i) {
    now = time.expect(now, kStart + 10s);
    CHECK(time.at(now) == now);
    if (now == kStart + 10s) break;
  }
  CHECK(now == kStart + 10s);
  CHECK_MESSAGE(time.expect(now, kStart) == now, "what is overdue rings at once");
}

TEST_CASE("awake time: it stands still from when the alarm was expected until it rings") {
  AwakeTime time;
  CHECK(time.expect(kStart, kStart + 10s) == kStart + kLook);
  CHECK(time.at(kStart + 100ms) == kStart + 100ms);
  CHECK(time.at(kStart + 1h) == kStart + kLook);
  time.rest(kStart + 1h);
  CHECK(time.at(kStart + 1h) == kStart + kLook);
  CHECK(time.at(kStart + 1h + 1s) == kStart + kLook + 1s);
  CHECK(time.expect(kStart + 1h, kStart + 10s) == kStart + 1h + kLook);
}

TEST_CASE("awake time: nothing is lost when nothing is due, and the farthest time is a time") {
  AwakeTime time;
  CHECK(time.at(kStart + 1h) == kStart + 1h);
  CHECK(time.expect(kStart, TimePoint::max()) == kStart + kLook);
  time.rest(kStart + 10ms);
  CHECK(time.at(kStart + 1h) == kStart + 1h);
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
