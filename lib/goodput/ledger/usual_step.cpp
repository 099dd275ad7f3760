// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/usual_step.hpp"

#include <algorithm>

namespace elastrun::goodput {
namespace {

// Steps of other lengths, or with some work in between, do not count as stalled.
constexpr int kTimesLonger = 5;
constexpr Duration kLeast = std::chrono::milliseconds(500);
// A median of fewer moves with each step.
constexpr std::size_t kEnough = 8;
constexpr int kRush = 5;  // times shorter

constexpr std::size_t kBursts = 5, kAlike = 3;
constexpr std::int64_t kFarthestAhead = 32;  // steps, where no burst is known

/// A century at most: steps are what a worker says.
Duration times(Duration time, std::int64_t steps) {
  const double all = static_cast<double>(time.count()) * static_cast<double>(steps);
  return Duration(static_cast<std::int64_t>(std::min(all, 3.2e18)));
}

/// Whether `time` is far beyond `usual`.
bool is_far(Duration time, Duration usual) {
  return time - usual >= kLeast && time / kTimesLonger > usual;
}

}  // namespace

/// A job that stalls for half of its time at the same distance has that pace.
bool UsualStep::Burst::is_alike(Duration pace) const {
  return steps > 1 && 2 * before <= time && 3 * this->pace() >= 2 * pace &&
         2 * this->pace() <= 3 * pace;
}

void UsualStep::add(const Steps& steps) {
  const bool is_long = times_.size() >= kEnough && steps.time >= kLeast &&
                       is_far(steps.time, times(times_.nth((times_.size() - 1) / 2), steps.count));
  burst_.steps += steps.count;
  burst_.time += steps.time;
  burst_.before += is_long ? Duration::zero() : steps.time;
  if (!steps.late) {
    auto ahead = kFarthestAhead;
    for (const auto& burst : bursts_) ahead = std::max(ahead, 2 * burst.steps);
    // Only what is told in a rush is ahead of its time: steps that vary are not, and one that is
    // done now has waited for all before it.
    const Duration due = times(pace_, steps.count);
    if (steps.time < due / kRush) early_ = std::min(early_ + due - steps.time, times(pace_, ahead));
    if (steps.time >= due / 2) early_ = {};
    times_.add(steps.time / steps.count);
    // Looking for the median costs more than all else.
    if (++added_ % kEnough == 0 || times_.size() <= kEnough) pace_ = *time();
    const bool over = std::ranges::all_of(
        bursts_, [&](const Burst& burst) { return burst_.steps > 2 * burst.steps; });
    if (!is_long && over && rhythm_) {
      bursts_.clear();
      rhythm_.reset();
    }
  }
  if (steps.stalled > Duration::zero()) early_ = {};
  if (!is_long) return;
  burst_.last = steps.last;
  burst_.stalled = steps.stalled;
  end_burst();
}

void UsualStep::end_burst() {
  if (bursts_.size() == kBursts) bursts_.erase(bursts_.begin());
  bursts_.push_back(std::exchange(burst_, {}));
  Ring<Duration, kBursts> paces;
  for (const auto& burst : bursts_) paces.add(burst.pace());
  const Duration middle = paces.nth(paces.size() / 2);
  const auto alike =
      std::ranges::count_if(bursts_, [&](const Burst& burst) { return burst.is_alike(middle); });
  const bool known = alike >= static_cast<std::ptrdiff_t>(kAlike);
  rhythm_ = known ? std::optional(middle) : std::nullopt;
  pace_ = *time();
}

void UsualStep::made_up(Duration time) {
  if (!bursts_.empty()) bursts_.back().stalled -= std::min(time, bursts_.back().stalled);
}

std::vector<std::pair<std::int64_t, Duration>> UsualStep::take_explained() {
  std::vector<std::pair<std::int64_t, Duration>> explained;
  if (!rhythm_) return explained;
  for (auto& burst : bursts_) {
    if (burst.stalled <= Duration::zero() || !burst.is_alike(*rhythm_)) continue;
    explained.emplace_back(burst.last, std::exchange(burst.stalled, {}));
  }
  return explained;
}

void UsualStep::interrupt() {
  early_ = {};
  burst_ = {};
  for (auto& burst : bursts_) burst.stalled = {};
}

std::optional<Duration> UsualStep::time(std::int64_t steps) const {
  if (times_.empty()) return std::nullopt;
  return times(std::max(times_.nth((times_.size() - 1) / 2), rhythm_.value_or(Duration())), steps);
}

std::optional<Duration> UsualStep::due(std::int64_t steps) const {
  const auto usual = time(steps);
  return usual && rhythm_ ? std::optional(*usual + early_) : usual;
}

Duration UsualStep::stall(Duration time, std::int64_t steps) const {
  if (times_.size() < kEnough || time - early_ < kLeast) return {};
  const Duration usual = *this->time(steps);
  return is_far(time - early_, usual) ? time - early_ - usual : Duration::zero();
}

}  // namespace elastrun::goodput
