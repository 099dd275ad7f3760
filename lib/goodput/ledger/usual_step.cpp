// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/usual_step.hpp"

#include <algorithm>

namespace elastrun::goodput {
namespace {

// Steps vary, by their data and by what else a machine does.
constexpr int kTimesLonger = 3;
// Where most steps are long, by the short ones; of steps of two lengths that are less far apart all
// are work.
constexpr int kTimesBrief = 4;
constexpr Duration kLeast = std::chrono::milliseconds(100);
// A median of fewer moves with each step.
constexpr std::size_t kEnough = 8;

/// A century at most: steps are what a worker says.
Duration times(Duration time, std::int64_t steps) {
  const double all = static_cast<double>(time.count()) * static_cast<double>(steps);
  return Duration(static_cast<std::int64_t>(std::min(all, 3.2e18)));
}

}  // namespace

void UsualStep::add(const Steps& steps) {
  if (steps.late) return;
  recent_.push_back(steps);
  if (recent_.size() > kKept) recent_.pop_front();
  times_.add(steps.time / steps.count);
  // The first ones had no measure. Of later ones an excess may go, as the pace becomes usual.
  const bool first = times_.size() == kEnough;
  for (auto& one : recent_) {
    if (!first && one.excess == Duration::zero()) continue;
    const Duration now = excess(one.time, one.count);
    if (!first && now > Duration::zero()) continue;
    if (now != one.excess) corrections_.emplace_back(one.last, now - one.excess);
    one.excess = now;
  }
}

std::optional<Duration> UsualStep::time(std::int64_t steps) const {
  if (times_.empty()) return std::nullopt;
  return times(times_.nth((times_.size() - 1) / 2), steps);
}

std::optional<Duration> UsualStep::brief(std::int64_t steps) const {
  if (times_.empty()) return std::nullopt;
  return times(times_.nth((times_.size() - 1) / 4), steps);
}

Duration UsualStep::excess(Duration time, std::int64_t steps) const {
  if (times_.size() < kEnough || time < kLeast) return {};
  const auto beyond = [time](Duration usual, int times) {
    return time - usual >= kLeast && time / times > usual ? time - usual : Duration::zero();
  };
  const Duration excess = beyond(*this->time(steps), kTimesLonger);
  return excess > Duration::zero() ? excess : beyond(*brief(steps), kTimesBrief);
}

}  // namespace elastrun::goodput
