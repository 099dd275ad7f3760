// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/ring.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace elastrun::hangs {

/// How long a job may go without a step, learnt from the time between its steps: the largest of
/// kShortest, ten times the median of the last kRemembered, and three times the longest so far, but
/// half an hour above that at most. A silent evaluation or recompilation is as long as the longest
/// only the second time, so kShortest is meant for the first one. Pure; memory does not grow.
class PaceLimit {
 public:
  static constexpr Duration kShortest = std::chrono::minutes(10);
  static constexpr int kStepsToLearn = 20;
  static constexpr std::size_t kRemembered = 256;

  void count_step() { ++steps_; }
  void learn(Duration step) {
    longest_ = std::max(longest_, step);
    times_.add(step);
  }
  bool is_known() const { return steps_ >= kStepsToLearn && !times_.empty(); }
  /// None: not known yet.
  std::optional<Duration> limit() const {
    if (!is_known()) return std::nullopt;
    const Duration above = std::min(kOfLongest * longest_, longest_ + kMostAboveLongest);
    return std::max({kShortest, kOfMedian * times_.nth(times_.size() / 2), above});
  }

 private:
  static constexpr int kOfMedian = 10, kOfLongest = 3;
  static constexpr Duration kMostAboveLongest = std::chrono::minutes(30);

  std::int64_t steps_ = 0;  // of the job, on this node
  Ring<Duration, kRemembered> times_;
  Duration longest_{};
};

}  // namespace elastrun::hangs
