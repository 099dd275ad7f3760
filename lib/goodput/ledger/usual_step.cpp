// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/usual_step.hpp"

#include <algorithm>

namespace elastrun::goodput {
namespace {

// The steps of a start vary that much by what else a machine does.
constexpr Duration kLeast = std::chrono::milliseconds(5);
constexpr int kTimesLonger = 3;
constexpr Duration kLeastWatched = std::chrono::milliseconds(100);

/// As long as a step of `brief` gets without a reason.
Duration about(Duration brief) {
  return brief + brief / 2;
}

/// A century at most: steps are what a worker says.
Duration times(Duration time, std::int64_t steps) {
  const double all = static_cast<double>(time.count()) * static_cast<double>(steps);
  return Duration(static_cast<std::int64_t>(std::min(all, 3.2e18)));
}

}  // namespace

void UsualStep::measure(Duration time) {
  times_.add(time);
  measured_ = std::min(measured_ + 1, kKept + 1);
  auto all = times_.values();
  std::ranges::sort(all);
  brief_ = all[(all.size() - 1) / 4];
  longest_ = all.back();
  const auto short_ones = std::ranges::upper_bound(all, about(brief_)) - all.begin();
  pace_ = all[static_cast<std::size_t>(short_ones - 1) / 2];
}

void UsualStep::add(const Steps& steps) {
  recent_.push_back(steps);
  if (recent_.size() > kKept) recent_.pop_front();
  if (steps.measure) measure((steps.time + steps.covered) / steps.count);
  if (times_.empty()) return;
  // Of later ones an excess may go, as the pace becomes usual, but none may come.
  const bool first = measured_ <= kKept;
  for (auto& one : recent_) {
    const bool open = first || &one == &recent_.back() || one.excess == one.time;
    if (!open && one.excess == Duration::zero()) continue;
    const Duration now = std::min(excess(one.time + one.covered, one.count, one.watched), one.time);
    if (!open && now > Duration::zero()) continue;
    if (now != one.excess) corrections_.emplace_back(one.last, now - one.excess);
    one.excess = now;
  }
}

std::optional<Duration> UsualStep::time(std::int64_t steps) const {
  return times_.empty() ? std::nullopt : std::optional(times(pace_, steps));
}

std::optional<Duration> UsualStep::at_most(std::int64_t steps) const {
  if (times_.empty()) return std::nullopt;
  return times(longest_, steps) + times(longest_ - brief_, steps);
}

Duration UsualStep::excess(Duration time, std::int64_t steps, bool watched) const {
  if (times_.empty()) return {};
  const Duration beyond = time - times(pace_, steps);
  const bool clearly = watched
                           ? time / kTimesLonger > times(pace_, steps) && beyond >= kLeastWatched
                           : time > times(about(brief_), steps) && beyond >= kLeast;
  return clearly ? beyond : Duration::zero();
}

}  // namespace elastrun::goodput
