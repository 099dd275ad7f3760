// SPDX-License-Identifier: Apache-2.0
#include "goodput/usual_step.hpp"

#include <algorithm>

namespace elastrun::goodput {
namespace {

// Steps of other lengths, or with some work in between, are no stall.
constexpr int kTimesLonger = 5;
constexpr Duration kLeast = std::chrono::milliseconds(500);
constexpr std::size_t kEnough = 8;

}  // namespace

void UsualStep::add(Duration time) {
  if (times_.size() < kKept) {
    times_.push_back(time);
    next_ = 0;
  } else {
    times_[next_] = time;
    next_ = (next_ + 1) % kKept;
  }
}

std::optional<Duration> UsualStep::time(std::int64_t steps) const {
  if (times_.empty()) return std::nullopt;
  auto times = times_;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::ranges::nth_element(times, middle);
  // A century at most: steps are what a worker says.
  const double all =
      std::min(static_cast<double>(middle->count()) * static_cast<double>(steps), 3.2e18);
  return Duration(static_cast<std::int64_t>(all));
}

Duration UsualStep::stall(Duration time, std::int64_t steps) const {
  if (times_.size() < kEnough || time < kLeast) return {};
  const Duration usual = *this->time(steps);
  return time - usual >= kLeast && time / kTimesLonger > usual ? time - usual : Duration::zero();
}

}  // namespace elastrun::goodput
