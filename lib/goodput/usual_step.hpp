// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace elastrun::goodput {

/// What a step usually takes: the median of the last ones, so that a few of any length change
/// nothing. Pure.
class UsualStep {
 public:
  static constexpr std::size_t kKept = 15;
  void add(Duration time);
  void clear() { times_.clear(); }
  std::size_t known() const { return times_.size(); }
  /// That of `steps` of them; none before the first one.
  std::optional<Duration> time(std::int64_t steps = 1) const;
  /// `steps` that took `time` stood still for so much of it: for all beyond the usual, if that is
  /// far beyond.
  Duration stall(Duration time, std::int64_t steps) const;

 private:
  std::vector<Duration> times_;  // a ring
  std::size_t next_ = 0;
};

}  // namespace elastrun::goodput
