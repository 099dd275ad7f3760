// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/ring.hpp"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace elastrun::goodput {

/// What a step usually takes, and whether one stood still. Pure.
///
/// That is the median of the last ones, so that a few of any length change nothing. But a script
/// may run ahead of its devices, and tell steps in bursts before it waits for them: steps that come
/// early count for the one after them. Where most do, the median says nothing; then it is the pace
/// of whole bursts with the long step that ends them, once three of the last ones have the same.
class UsualStep {
 public:
  static constexpr std::size_t kKept = 31;
  /// One or more that were told at once.
  struct Steps {
    std::int64_t last = 0, count = 1;
    Duration time{};
    Duration stalled{};  // of that; as stall() has it
    bool late = false;   // done before, in a stall: no measure of what is usual
  };
  void add(const Steps& steps);
  /// Of the last stall so much was none.
  void made_up(Duration time);
  /// What was taken for a stall of that step, and was the end of a burst; each once.
  std::vector<std::pair<std::int64_t, Duration>> take_explained();
  /// The steps until now are over: none of them is explained by later ones.
  void interrupt();
  void clear() { *this = {}; }

  /// Whether steps of almost no time are nothing special.
  bool in_bursts() const { return rhythm_.has_value(); }
  std::size_t known() const { return times_.size(); }
  /// That of `steps` of them; none before the first one.
  std::optional<Duration> time(std::int64_t steps = 1) const;
  /// The most that the next ones take in that pace: in a burst those before them came early.
  std::optional<Duration> due(std::int64_t steps) const;
  /// `steps` that took `time` stood still for so much of it: for all beyond that, if it is far
  /// beyond.
  Duration stall(Duration time, std::int64_t steps) const;

 private:
  struct Burst {
    std::int64_t steps = 0, last = 0;
    Duration time{}, before{};  // of all; of all but the long one
    Duration stalled{};
    Duration pace() const { return time / steps; }
    bool is_alike(Duration pace) const;
  };
  void end_burst();

  Ring<Duration, kKept> times_;
  std::size_t added_ = 0;
  Duration pace_{};                 // time(), as it was a few steps ago
  Duration early_{};                // by how much the steps until now came early
  Burst burst_;                     // that has not ended
  std::vector<Burst> bursts_;       // the last ones
  std::optional<Duration> rhythm_;  // their pace, where they have one
};

}  // namespace elastrun::goodput
