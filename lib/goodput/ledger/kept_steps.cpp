// SPDX-License-Identifier: Apache-2.0

#include "goodput/ledger/kept_steps.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

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
  times_.push_back(time);
  measured_ = std::min(measured_ + 1, kKept + 1);
  std::vector all(times_.begin(), times_.end());
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

namespace {

using Number = StepNumbers::Number;

// No job does so many; what is beyond counts as it is told.
constexpr Number kMostCounted = Number{1} << 53;

bool is_far(Number number) {
  return number < -kMostCounted || number > kMostCounted;
}

}  // namespace

void StepNumbers::untold(std::optional<Number> last) {
  if (!begun_) {
    loaded_ = true;
    return;
  }
  ++saves_;
  saved_ = std::max(saved_, last);
}

Number StepNumbers::of_step(Number told, std::optional<Number> last, std::optional<Number> safe,
                            Number stride) {
  const bool first = !std::exchange(begun_, true);
  if (!base_) base_ = told;
  // The numbers are a worker's: no sum of them may overflow.
  if (is_far(told) || (last && is_far(*last))) return told;
  if (!last) {  // none is kept
    if (first) ahead_ = ahead_before_ = 0;
    return told + ahead_;
  }
  if (first) return first_of_start(told, *last, safe);
  if (told <= *base_ && told + ahead_ < *last) {
    ahead_before_ = std::exchange(ahead_, std::max(*last, safe.value_or(*last)) + stride - told);
    ++begun_again_;
  }
  return told + ahead_;
}

/// A number above the first one of all was not counted from the beginning: the job knows it.
Number StepNumbers::first_of_start(Number told, Number last, std::optional<Number> safe) {
  // With what was added before, then with nothing: a number that the job itself knows fits one.
  if (told + ahead_ > last + 1) ahead_ = ahead_before_;
  if (told + ahead_ > last + 1) ahead_ = ahead_before_ = 0;
  const Number number = told + ahead_;
  auto kept = !loaded_ ? saved_ : saved_ || safe ? std::max(saved_, safe) : last;
  // Of a job that counts epochs, and of one whose last step was saved, it may be the next epoch.
  const bool epochs = begun_again_ > 0;
  if (epochs || safe == last) kept = std::max(kept, safe);
  if (told <= *base_ && kept >= number) {
    ahead_before_ = std::exchange(ahead_, *kept + 1 - told);
    if (!epochs || kept != safe || safe != last) doubt(*kept);
    return *kept + 1;
  }
  // Of several epochs it may have resumed in any.
  if (begun_again_ > 0 && number <= last && (!safe || number != *safe + 1)) doubt(number - 1);
  return number;
}

Number StepNumbers::of_checkpoint(Number told, std::optional<Number> last) const {
  if (!last || is_far(told) || is_far(*last)) return told;
  const bool of_epoch_before = told + ahead_ > *last + 1 && begun_again_ > 0;
  return told + (of_epoch_before ? ahead_before_ : ahead_);
}

KeptSteps::Done& KeptSteps::Done::operator+=(const Done& more) {
  steps += more.steps;
  time += more.time;
  gap += more.gap;
  return *this;
}

KeptSteps::Done& KeptSteps::Done::operator-=(const Done& less) {
  return *this += {-less.steps, -less.time, -less.gap};
}

/// The part of it that lies before `step`, which is one of this stretch or the next after its
/// first: as if all had taken the same time.
KeptSteps::Mark KeptSteps::Mark::before(std::int64_t step) const {
  const auto from = static_cast<double>(first);
  const double all = static_cast<double>(last) - from + 1;
  const double share = std::clamp((static_cast<double>(step) - from) / all, 0.0, 1.0);
  const auto part = [share](std::int64_t whole) {
    return static_cast<std::int64_t>(static_cast<double>(whole) * share);
  };
  const Done some{part(done.steps), Duration(part(done.time.count())),
                  Duration(part(done.gap.count()))};
  return {first, step - 1, some, ranks};
}

void KeptSteps::add(std::int64_t step, Done done, std::int64_t ranks) {
  Mark mark{step, step, done, ranks};
  for (std::size_t width = 0;; ++width) {
    if (width == widths_.size()) widths_.emplace_back();
    auto& marks = widths_[width];
    marks.push_back(mark);
    // The two oldest become one of the next width: memory grows with the logarithm of the steps,
    // and the recent ones, which a resume cuts, stay exact.
    if (marks.size() <= kOfAWidth) return;
    const Mark oldest = marks[0], next = marks[1];
    marks.erase(marks.begin(), marks.begin() + 2);
    mark = {oldest.first, next.last, oldest.done, next.ranks};
    mark.done += next.done;
  }
}

void KeptSteps::prolong(const Done& more) {
  for (auto& marks : widths_) {
    if (marks.empty()) continue;
    marks.back().done += more;
    return;
  }
}

bool KeptSteps::prolong(std::int64_t step, const Done& more) {
  for (auto& marks : widths_) {
    for (auto& mark : marks | std::views::reverse) {
      // In each width, and from width to width, marks go back in time: nothing earlier fits.
      if (mark.last < step) return false;
      if (mark.first != step || mark.last != step) continue;
      mark.done += more;
      return true;
    }
  }
  return false;
}

KeptSteps::Done KeptSteps::take_back(std::int64_t step) {
  Done taken;
  for (auto& marks : widths_) {
    for (; !marks.empty(); marks.pop_back()) {
      // From the newest one back: within a width, and from one to the next, marks get older.
      const Mark mark = marks.back();
      if (mark.last < step) return taken;
      taken += mark.done;
      if (mark.first >= step) continue;
      marks.back() = mark.before(step);
      return taken -= marks.back().done;
    }
  }
  return taken;
}

KeptSteps::Done KeptSteps::above(std::int64_t step) const {
  Done all;
  for (const auto& marks : widths_) {
    for (const auto& mark : marks | std::views::reverse) {
      if (mark.last <= step) return all;
      all += mark.done;
      if (mark.first <= step) return all -= mark.before(step + 1).done;
    }
  }
  return all;
}

std::map<std::int64_t, KeptSteps::Done> KeptSteps::by_ranks(std::int64_t step) const {
  std::map<std::int64_t, Done> all;
  for (const auto& marks : widths_) {
    for (const auto& mark : marks) {
      if (mark.first > step) continue;
      all[mark.ranks] += mark.last > step ? mark.before(step + 1).done : mark.done;
    }
  }
  return all;
}

std::optional<std::int64_t> KeptSteps::last() const {
  for (const auto& marks : widths_) {
    if (!marks.empty()) return marks.back().last;
  }
  return std::nullopt;
}

}  // namespace elastrun::goodput
