// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace elastrun::rendezvous {

/// How far the coordinator's clock (nanoseconds since the epoch) is ahead of this process's steady
/// clock, and by how much that may be wrong.
struct ClockReading {
  Duration offset{}, error{};
  std::int64_t epoch = 0;  // in which that coordinator has taken us in: another one has a later one
};

/// Learns that from the answers to what was asked on the connection, as NTP does: the clock was
/// read half of the round trip before the answer came, give or take that half, so the shortest
/// round trip counts. Pure.
class ClockOffset {
 public:
  /// Two clocks drift apart by so much at most, so that an old reading is worth less.
  static constexpr std::int64_t kDriftPerMillion = 100;
  /// After so long a reading is told again, as drift may have moved it.
  static constexpr Duration kTellAgain = std::chrono::minutes(10);

  /// Another coordinator has another clock.
  void forget() { *this = {}; }
  /// The answer to what was sent at `sent` gave `clock`; 0: it tells none. A reading where it is
  /// worth writing down: the first one, one that is at least twice as good as what was told, one
  /// that what was told excludes, or the best one after a while.
  std::optional<ClockReading> take(TimePoint sent, std::int64_t clock, TimePoint received);

 private:
  struct Taken {
    ClockReading reading;
    TimePoint at;
    Duration error(TimePoint now) const {
      return reading.error + (now - at) * kDriftPerMillion / 1'000'000;
    }
  };
  std::optional<Taken> best_, told_;
};

/// The same beside a session, which passes each reading on.
class CoordinatorClock {
 public:
  explicit CoordinatorClock(const Clock& clock) : clock_(clock) {}
  void on_reading(std::function<void(const ClockReading&)> tell) { tell_ = std::move(tell); }
  /// A coordinator has taken us in, with the answer to what was sent then; as ClockOffset::take().
  void welcomed(std::int64_t epoch, TimePoint sent, std::int64_t clock) {
    epoch_ = epoch;
    offset_.forget();
    heard(sent, clock);
  }
  /// `sent`: as now() was.
  void heard(TimePoint sent, std::int64_t clock) {
    auto reading = offset_.take(sent, clock, clock_.now());
    if (!reading || !tell_) return;
    reading->epoch = epoch_;
    tell_(*reading);
  }

 private:
  const Clock& clock_;
  ClockOffset offset_;
  std::int64_t epoch_ = 0;
  std::function<void(const ClockReading&)> tell_;
};

}  // namespace elastrun::rendezvous
