// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace elastrun::agent {

/// When the workers of a preempted job are stopped: at the end of the time that they have to save;
/// once the job has saved, after a moment in which they may end by themselves. Who still writes by
/// then, as a rank does whose part of a checkpoint is larger, may go on until the end of the time.
class LeaveTime {
 public:
  /// To leave a process group of GPUs, and for Python to end, takes seconds.
  static constexpr Duration kMoment = std::chrono::seconds(5);
  static constexpr Duration kSilence = std::chrono::seconds(1);
  /// From one look to the next; less may be a log.
  static constexpr std::uint64_t kWrites = 1u << 20;

  /// `written`: bytes, so far, by the workers and what they have started; may be empty.
  LeaveTime(Clock& clock, std::function<std::uint64_t()> written, std::function<void()> over)
      : clock_(clock),
        written_(std::move(written)),
        over_(std::move(over)),
        alarm_(clock.make_alarm()) {}

  /// They are asked to save, and have so long.
  void begin(Duration left) {
    until_ = clock_.now() + left;
    // Later, since the coordinator says the same then: this is for one that is silent.
    alarm_->arm(until_ + kSilence, over_);
  }
  /// The job has saved, or its time is over.
  void saved() {
    if (written_) before_ = written_();
    arm();
  }
  void end() { alarm_->disarm(); }
  /// Of the time to save.
  Duration left() const { return std::max(until_ - clock_.now(), Duration::zero()); }

 private:
  void arm() {
    alarm_->arm(std::min(until_, clock_.now() + kMoment), [this] { look(); });
  }
  void look() {
    const auto now = written_ ? written_() : 0;
    if (left() == Duration::zero() || now < before_ + kWrites) return over_();
    before_ = now;
    arm();
  }

  Clock& clock_;
  const std::function<std::uint64_t()> written_;
  const std::function<void()> over_;
  std::unique_ptr<Alarm> alarm_;
  TimePoint until_{};
  std::uint64_t before_ = 0;
};

}  // namespace elastrun::agent
