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
/// A step that is clearly longer than the shorter ones did work, or the script did something else
/// meanwhile: only the script knows. So the pace is that of the shorter quarter of the last steps
/// and of what is about as long; a few of any length change nothing. If the pace itself becomes
/// slower, nearly all later steps show that, and explain those before them. The first steps are
/// compared with those after them.
class UsualStep {
 public:
  static constexpr std::size_t kKept = 31;
  /// One or more that were told at once.
  struct Steps {
    std::int64_t last = 0, count = 1;
    Duration time{};
    Duration covered{};    // before that, by a checkpoint in the middle
    Duration excess{};     // of `time`; as excess() has it
    bool measure = true;   // else the time holds more than the step
    bool watched = false;  // as excess() has it
  };
  void add(const Steps& steps);
  /// The last excess is smaller by so much; of which step it is.
  std::optional<std::int64_t> made_up(Duration time) {
    if (recent_.empty()) return std::nullopt;
    recent_.back().time -= time;
    recent_.back().excess -= time;
    return recent_.back().last;
  }
  /// By how much more (or less) of a recent step, or of the one just added, is excess than was
  /// said before; each correction once.
  std::vector<std::pair<std::int64_t, Duration>> take_corrections() {
    return std::exchange(corrections_, {});
  }
  /// `step` and those after it are not kept: later ones explain none of them.
  void forget(std::int64_t step) {
    std::erase_if(recent_, [step](const Steps& one) { return one.last >= step; });
  }
  void clear() { *this = {}; }

  std::size_t known() const { return times_.size(); }
  /// That of `steps` of them; none before the first one.
  std::optional<Duration> time(std::int64_t steps = 1) const;
  /// As time(): what the next ones take at most, if they vary as the last ones do.
  std::optional<Duration> at_most(std::int64_t steps) const;
  /// What of `time` is beyond the usual time of `steps`, if it is clearly longer; else zero.
  /// `watched`: something tells what lies between steps, and they vary by their data.
  Duration excess(Duration time, std::int64_t steps, bool watched = false) const;

 private:
  void measure(Duration time);

  Ring<Duration, kKept> times_;
  Duration brief_{}, pace_{}, longest_{};  // of these
  std::size_t measured_ = 0;               // at most one more than are kept
  std::deque<Steps> recent_;               // what may be corrected
  std::vector<std::pair<std::int64_t, Duration>> corrections_;
};

}  // namespace elastrun::goodput
