// SPDX-License-Identifier: Apache-2.0
#include "hangs/pace_limit.hpp"

#include <algorithm>

namespace elastrun::hangs {
namespace {

constexpr int kOfMedian = 10, kOfLongest = 3;
constexpr Duration kMostAboveLongest = std::chrono::minutes(30);

}  // namespace

void PaceLimit::learn(Duration step) {
  longest_ = std::max(longest_, step);
  times_.add(step);
}

std::optional<Duration> PaceLimit::limit() const {
  if (!is_known()) return std::nullopt;
  const Duration above = std::min(kOfLongest * longest_, longest_ + kMostAboveLongest);
  return std::max({kShortest, kOfMedian * times_.nth(times_.size() / 2), above});
}

}  // namespace elastrun::hangs
