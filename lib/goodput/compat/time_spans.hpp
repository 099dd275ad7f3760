// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace elastrun::goodput {

/// From `begin` to `end`, POSIX seconds.
struct TimeSpan {
  double begin = 0;
  double end = 0;

  double length() const { return end - begin; }
};

/// Sorted, with those that overlap or touch made one.
std::vector<TimeSpan> merged(std::vector<TimeSpan> spans);

/// How long `span` lies within `spans`, which are as merged() returns them, or do not overlap.
double overlap(const TimeSpan& span, const std::vector<TimeSpan>& spans);

}  // namespace elastrun::goodput
