// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/clock_offset.hpp"

namespace elastrun::rendezvous {
namespace {

constexpr std::int64_t kFarthest = 7'000'000'000'000'000'000;  // the year 2191

}  // namespace

std::optional<ClockReading> ClockOffset::take(TimePoint sent, std::int64_t clock,
                                              TimePoint received) {
  // As in NTP: the other clock was read somewhere within the round trip, so half of that bounds the
  // error.
  const Duration half = (received - sent) / 2;
  if (clock <= 0 || clock > kFarthest || half < Duration::zero()) return std::nullopt;
  const Taken taken{{Duration(clock) - (sent + half).time_since_epoch(), half}, received};
  const auto excludes = [&](const Taken& other) {
    const Duration apart = taken.reading.offset - other.reading.offset;
    const Duration most = half + other.error(received);
    return apart > most || apart < -most;
  };
  // The error of a reading grows with its age; two that exclude each other mean that a clock was
  // set.
  if (!best_ || half <= best_->error(received) || excludes(*best_)) best_ = taken;
  const bool tells = !told_ || excludes(*told_) || received - told_->at >= kTellAgain ||
                     best_->error(received) * 2 <= told_->error(received);
  if (!tells) return std::nullopt;
  told_ = Taken{{best_->reading.offset, best_->error(received)}, received};
  return told_->reading;
}

}  // namespace elastrun::rendezvous
