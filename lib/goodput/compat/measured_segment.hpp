// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/compat/measured_times.hpp"

#include <cstdint>
#include <unordered_set>
#include <vector>

namespace elastrun::goodput {

/// The steps between two disruptions of a measured job, in order of arrival: none has a number
/// twice.
class StepSegment {
 public:
  struct Step {
    std::int64_t step = 0;
    double time = 0;  // of its start, POSIX seconds
  };
  struct Closed {
    double productive = 0;
    std::int64_t max_step = 0;
    double excluded = 0;
  };

  /// False if there is such a step already; nothing is added then.
  bool add(std::int64_t step, double time);
  bool empty() const { return steps_.empty(); }
  double last_time() const { return steps_.back().time; }
  Step highest() const;

  /// Steps beyond `cut` are wasted. What is not productive is added to `times.badput`, and with
  /// exclusions how long each step took to `times.steps`.
  Closed close(std::int64_t cut, const CustomEvents& customs, const std::vector<TimeSpan>* excluded,
               MeasuredTimes& times) const;

 private:
  bool known(std::int64_t step) const;

  std::vector<Step> steps_;
  bool rising_ = true;  // as nearly always: then no set is needed
  std::unordered_set<std::int64_t> numbers_;
};

}  // namespace elastrun::goodput
