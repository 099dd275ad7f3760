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
  if (times_.size() < kRemembered) return times_.push_back(step);
  times_[next_] = step;
  next_ = (next_ + 1) % kRemembered;
}

std::optional<Duration> PaceLimit::limit() const {
  if (!is_known()) return std::nullopt;
  auto times = times_;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  const Duration above = std::min(kOfLongest * longest_, longest_ + kMostAboveLongest);
  return std::max({kShortest, kOfMedian * *middle, above});
}

}  // namespace elastrun::hangs
