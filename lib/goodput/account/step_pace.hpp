// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/ring.hpp"

#include <cstdint>
#include <optional>

namespace elastrun::goodput {

/// How long the steps of a job take, from the numbers and times of those that are reported: as
/// step_times.hpp defines it, but for steps of any length, and for those that are reported only
/// every n-th time. Pure; memory does not grow. In seconds.
class StepPace {
 public:
  static constexpr std::size_t kKept = 1100;  // what deviation() looks at
  /// Ignores the same number again, and a lower one.
  void step(std::int64_t number, TimePoint now);
  /// Leaves out the time until the next step: the workers are stopped or start.
  void interrupt() { last_.reset(); }

  /// What a step takes if nothing disturbs it.
  std::optional<double> ideal() const;
  /// How far steps are from it.
  std::optional<double> deviation() const;

 private:
  struct Last {
    std::int64_t number;
    TimePoint at;
  };

  std::optional<Last> last_;
  Ring<double, kKept> times_;
};

}  // namespace elastrun::goodput
