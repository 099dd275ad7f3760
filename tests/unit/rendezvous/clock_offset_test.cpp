// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/clock_offset.hpp"

#include "rendezvous/coordinator/unset_clock.hpp"

#include <doctest/doctest.h>
#include <random>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace std::chrono_literals;

namespace {

constexpr Duration kAhead = std::chrono::seconds(1'767'323'045);

/// One that somebody sets.
struct SetClock final : Clock {
  TimePoint now() const override { return TimePoint(steady); }
  WallTime wall() const override { return WallTime(day); }
  std::unique_ptr<Alarm> make_alarm() override { return nullptr; }
  Duration steady = 7s, day = kAhead;
};

/// An answer that took `there` and `back`, sent at `sent`.
std::optional<ClockReading> ask(ClockOffset& offset, Duration sent, Duration there, Duration back,
                                Duration ahead = kAhead) {
  const TimePoint at(sent);
  return offset.take(at, (sent + there + ahead).count(), at + there + back);
}

}  // namespace

TEST_CASE("clock offset: an answer tells it within half of its round trip") {
  ClockOffset offset;
  const auto even = ask(offset, 5s, 2ms, 2ms);
  REQUIRE(even.has_value());
  CHECK(even->offset == kAhead);
  CHECK(even->error == 2ms);
  ClockOffset other;
  const auto uneven = ask(other, 5s, 4ms, 0ms);
  CHECK(uneven->offset - kAhead == 2ms);
  CHECK(uneven->error == 2ms);
}

TEST_CASE("clock offset: the shortest round trip counts, and is told once it is twice as good") {
  ClockOffset offset;
  CHECK(ask(offset, 1s, 10ms, 10ms));
  CHECK_FALSE(ask(offset, 2s, 1s, 0s));
  CHECK_FALSE(ask(offset, 3s, 8ms, 8ms));  // better, but not by much
  const auto told = ask(offset, 4s, 1ms, 0ms);
  REQUIRE(told.has_value());
  CHECK(told->error == 500us);
  CHECK_FALSE(ask(offset, 5s, 1ms, 0ms));
}

TEST_CASE("clock offset: it is told again after a while, as worth as it still is") {
  ClockOffset offset;
  CHECK(ask(offset, 0s, 1ms, 1ms));
  CHECK_FALSE(ask(offset, 9min, 1s, 1s));
  const auto told = ask(offset, 10min, 1s, 1s);
  REQUIRE(told.has_value());
  CHECK(told->offset == kAhead);
  CHECK(told->error > 60ms);  // what drift may have made of a millisecond in ten minutes
  CHECK(told->error < 62ms);
}

TEST_CASE("clock offset: a clock that is another one is told at once, and a release without none") {
  ClockOffset offset;
  CHECK(ask(offset, 1s, 1ms, 1ms));
  const auto moved = ask(offset, 2s, 20ms, 20ms, kAhead + 1s);
  REQUIRE(moved.has_value());
  CHECK(moved->offset == kAhead + 1s);
  offset.forget();
  CHECK(ask(offset, 3s, 40ms, 40ms, kAhead + 1s));
  CHECK_FALSE(offset.take(TimePoint(4s), 0, TimePoint(4s)));
  CHECK_FALSE(offset.take(TimePoint(6s), kAhead.count(), TimePoint(5s)));  // nonsense
}

TEST_CASE("clock offset: with drift and any delays what was told holds as said") {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> microseconds(50, 30'000), drift(-90, 90);
  for (int run = 0; run < 200; ++run) {
    ClockOffset offset;
    std::optional<ClockReading> told;
    const auto per_million = drift(random);
    const auto truth = [&](Duration at) { return kAhead + at * per_million / 1'000'000; };
    Duration told_at{};
    for (Duration at = 0s; at < 30min; at += 5s) {
      const Duration there = std::chrono::microseconds(microseconds(random));
      const Duration back = std::chrono::microseconds(microseconds(random));
      if (const auto reading = ask(offset, at, there, back, truth(at + there))) {
        told = reading;
        told_at = at + there + back;
      }
      REQUIRE(told.has_value());
      const Duration now = at + there + back;
      const Duration wrong = told->offset - truth(now);
      const Duration most = told->error + (now - told_at) * 100 / 1'000'000 + 1us;
      CHECK((wrong < Duration::zero() ? -wrong : wrong) <= most);
    }
  }
}

TEST_CASE("clock offset: whoever sets the coordinator's clock moves nothing") {
  SetClock clock;
  const UnsetClock unset(clock);
  CHECK(unset.now() == Duration(kAhead).count());
  clock.steady += 5s;
  clock.day += 1h;
  CHECK(unset.now() == Duration(kAhead + 5s).count());
}
