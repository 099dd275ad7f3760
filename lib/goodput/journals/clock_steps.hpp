// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <cstdint>
#include <optional>

namespace elastrun::goodput {

/// Counts how often the wall clock of an agent's machine was set, or the machine slept, as its
/// records show. No time is measured by that clock but the one between two submissions.
class ClockSteps {
 public:
  /// All records of one journal, in order.
  void take(const telemetry::Record& record) { take(record, record.stamp); }
  /// One whose stamp was another one.
  void take(const telemetry::Record& record, const telemetry::Stamp& stamp) {
    if (record.scope != "elastrun.agent") return;  // others have times of workers
    if (record.name == "job.started") last_.reset();
    const auto wall = stamp.wall.time_since_epoch();
    const auto mono = stamp.mono.time_since_epoch();
    std::int64_t apart = 0;
    if (__builtin_sub_overflow(wall.count(), mono.count(), &apart)) return;
    std::int64_t moved = 0;
    const bool far = last_ && (__builtin_sub_overflow(apart, *last_, &moved) ||
                               moved > kLeast.count() || moved < -kLeast.count());
    count_ += far ? 1 : 0;
    last_ = apart;
  }
  std::uint64_t count() const { return count_; }

 private:
  // A clock that is disciplined by slewing moves 0.5 ms a second at most; both clocks of a record
  // are read within a moment, in which this process may have to wait for a core.
  static constexpr Duration kLeast = std::chrono::milliseconds(500);
  std::optional<std::int64_t> last_;
  std::uint64_t count_ = 0;
};

}  // namespace elastrun::goodput
