// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace elastrun {

using Duration = std::chrono::nanoseconds;
/// Monotonic: intervals and deadlines. Stepping the wall clock moves none of them.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
/// Wall clock: only for what people read and for what crosses machines.
using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;

/// One pending wake-up. Destroying it, or arming it again, forgets the earlier one: the callback
/// then never runs, not even when its time had already come.
class Alarm {
 public:
  using Ring = std::function<void()>;
  virtual ~Alarm() = default;
  /// Runs `ring` once on the loop at `when` (at once, but not inside this call, if that is past).
  virtual void arm(TimePoint when, Ring ring) = 0;
  virtual void disarm() = 0;
};

/// The only source of time. Pure classes get `now` as an argument instead.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual WallTime wall() const = 0;
  /// An alarm that must not outlive this clock.
  virtual std::unique_ptr<Alarm> make_alarm() = 0;
};

}  // namespace elastrun
