// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/ring.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace elastrun::goodput {

/// How long a step usually takes, and what one took beyond that for no known reason. Pure.
///
/// The usual time is the median of the last steps: a few of any length change nothing. A step far
/// beyond it did work, or the script did something else meanwhile: only the script knows. So did
/// half of the steps, if the others are far shorter. If the pace itself changes, nearly all later
/// steps show that, and explain those before them.
class UsualStep {
 public:
  static constexpr std::size_t kKept = 31;
  /// One or more that were told at once.
  struct Steps {
    std::int64_t last = 0, count = 1;
    Duration time{};
    Duration excess{};  // of that; as excess() has it
    bool late = false;  // done before, in such an excess: no measure of what is usual
  };
  void add(const Steps& steps);
  /// The last excess is smaller by so much.
  void made_up(Duration time) {
    if (!recent_.empty()) recent_.back().excess -= std::min(time, recent_.back().excess);
  }
  /// By how much more (or less) of a recent step is excess than was said when it was added; each
  /// correction once.
  std::vector<std::pair<std::int64_t, Duration>> take_corrections() {
    return std::exchange(corrections_, {});
  }
  /// The steps until now are over: later ones explain none of them.
  void interrupt() { recent_.clear(); }
  void clear() { *this = {}; }

  std::size_t known() const { return times_.size(); }
  /// That of `steps` of them; none before the first one.
  std::optional<Duration> time(std::int64_t steps = 1) const;
  /// As time(): what a quarter of them took at most, though most do something else besides.
  std::optional<Duration> brief(std::int64_t steps) const;
  /// What of `time` is beyond the usual time of `steps`, if it is far beyond; else zero.
  Duration excess(Duration time, std::int64_t steps) const;

 private:
  Ring<Duration, kKept> times_;
  std::deque<Steps> recent_;  // what may be corrected
  std::vector<std::pair<std::int64_t, Duration>> corrections_;
};

}  // namespace elastrun::goodput
