// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace elastrun {

/// The kernel's clocks; alarms are timers of the given loop.
std::unique_ptr<Clock> make_system_clock(boost::asio::any_io_executor executor);

/// The time of a wait for others, who stand still when we do: without what passes while all
/// processes are stopped (SIGSTOP, a frozen cgroup, a machine that is paused), which
/// CLOCK_MONOTONIC counts. A pause is known by the lateness of our own alarm, which rings every
/// kLook while anything is due: from the moment for which it was expected until it rings, this time
/// stands still. For bounded waits, and not for what others measure, too: they go on.
class AwakeClock final : public Clock {
 public:
  /// The longest part of a pause that counts.
  static constexpr Duration kLook = std::chrono::milliseconds(250);

  /// `clock` must outlive it.
  explicit AwakeClock(Clock& clock) : clock_(clock), look_(clock.make_alarm()) {}
  AwakeClock(const AwakeClock&) = delete;
  AwakeClock& operator=(const AwakeClock&) = delete;

  TimePoint now() const override { return std::min(clock_.now(), expected_) - lost_; }
  WallTime wall() const override { return clock_.wall(); }
  std::unique_ptr<Alarm> make_alarm() override;

 private:
  class AwakeAlarm;
  struct Pending {
    const Alarm* owner;
    TimePoint due;
    Alarm::Ring ring;
  };
  void rest();
  void expect_next();
  void look();

  Clock& clock_;
  const std::unique_ptr<Alarm> look_;
  TimePoint expected_ = TimePoint::max();  // when the alarm is to ring next
  Duration lost_{};
  std::vector<Pending> pending_;
};

/// An alarm for what is to happen unless something else comes first. If this process was paused
/// beyond its time it does not ring at once, but `grace` later: what was due meanwhile, or is
/// being asked now, has its chance. For times that other processes measure, too; for all others,
/// AwakeClock leaves the pause out of the time.
class PauseTolerantAlarm final : public Alarm {
 public:
  PauseTolerantAlarm(Clock& clock, Duration grace)
      : clock_(clock), grace_(grace), alarm_(clock.make_alarm()) {}

  void arm(TimePoint when, Ring ring) override {
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
