// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

namespace elastrun {

/// An alarm for what is to happen unless something else comes first. If this process was paused
/// beyond its time it does not ring at once, but `grace` later: what was due meanwhile, or is
/// being asked now, has its chance. For times that other processes measure, too; for all others,
/// AwakeClock leaves the pause out of the time.
class PauseTolerantAlarm final : public Alarm {
 public:
  PauseTolerantAlarm(Clock& clock, Duration grace)
      : clock_(clock), grace_(grace), alarm_(clock.make_alarm()) {}

  void arm(TimePoint when, std::function<void()> ring) override {
    const TimePoint due = std::max(when, clock_.now());
    alarm_->arm(due, [this, due, ring = std::move(ring)] {
      const TimePoint now = clock_.now();
      if (now - due > grace_) return arm(now + grace_, ring);
      ring();
    });
  }
  void disarm() override { alarm_->disarm(); }

 private:
  Clock& clock_;
  const Duration grace_;
  const std::unique_ptr<Alarm> alarm_;
};

}  // namespace elastrun
