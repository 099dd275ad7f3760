// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace elastrun::goodput {

/// How long the steps of a job took, in the order in which they were done. Pure. Memory stays
/// bounded: beyond twice kPoints neighbours become one point, which keeps the shortest and the
/// longest of its steps.
class StepSeries {
 public:
  static constexpr std::size_t kPoints = 1024;

  struct Point {
    Duration at{};                     // since the start of the job: the end of its last step
    std::int64_t first = 0, last = 0;  // numbers of its first and its last step
    Duration min{}, max{}, sum{};      // of the times of its steps
    std::uint64_t count = 0;
    Duration mean() const { return sum / static_cast<std::int64_t>(count); }
  };

  /// Step `number` begins.
  void begin(std::int64_t number, Duration at);
  /// Step `number` ended: since its begin, or the end of the one that was told last. Where numbers
  /// are left out the time is that of each of them on average.
  void end(std::int64_t number, Duration at);
  /// The time from here to the next begin or end is that of no step.
  void interrupt() { known_.reset(); }

  const std::vector<Point>& points() const { return points_; }

 private:
  struct Known {
    double done;  // the number of the last step that is done
    Duration at;
  };
  void add(std::int64_t number, Duration at, Duration time);

  std::optional<Known> known_;
  std::vector<Point> points_;
  std::uint64_t steps_per_point_ = 1;
};

}  // namespace elastrun::goodput
