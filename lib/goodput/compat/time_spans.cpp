// SPDX-License-Identifier: Apache-2.0
#include "goodput/compat/time_spans.hpp"

#include <algorithm>

namespace elastrun::goodput {

std::vector<TimeSpan> merged(std::vector<TimeSpan> spans) {
  std::ranges::sort(spans, {}, &TimeSpan::begin);
  std::vector<TimeSpan> apart;
  for (const auto& span : spans) {
    if (apart.empty() || span.begin > apart.back().end) {
      apart.push_back(span);
    } else {
      apart.back().end = std::max(apart.back().end, span.end);
    }
  }
  return apart;
}

double overlap(const TimeSpan& span, const std::vector<TimeSpan>& spans) {
  double seconds = 0;
  for (const auto& other : spans) {
    seconds += std::max(0.0, std::min(span.end, other.end) - std::max(span.begin, other.begin));
  }
  return seconds;
}

}  // namespace elastrun::goodput
