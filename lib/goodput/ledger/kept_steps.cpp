// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/kept_steps.hpp"

#include <algorithm>
#include <ranges>

namespace elastrun::goodput {

/// The part of it that lies before `step`, which is one of this stretch or the next after its
/// first: as if all had taken the same time.
KeptSteps::Mark KeptSteps::Mark::before(std::int64_t step) const {
  const auto from = static_cast<double>(first);
  const double all = static_cast<double>(last) - from + 1;
  const double share = std::clamp((static_cast<double>(step) - from) / all, 0.0, 1.0);
  const auto part = [share](std::int64_t whole) {
    return static_cast<std::int64_t>(static_cast<double>(whole) * share);
  };
  return {first, step - 1, {part(done.steps), Duration(part(done.time.count()))}, ranks};
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
    mark = {oldest.first,
            next.last,
            {oldest.done.steps + next.done.steps, oldest.done.time + next.done.time},
            next.ranks};
  }
}

void KeptSteps::prolong(Duration time) {
  for (auto& marks : widths_) {
    if (marks.empty()) continue;
    marks.back().done.time += time;
    return;
  }
}

bool KeptSteps::prolong(std::int64_t step, Duration time, std::int64_t more) {
  for (auto& marks : widths_) {
    for (auto& mark : marks | std::views::reverse) {
      // In each width, and from width to width, marks go back in time: nothing earlier fits.
      if (mark.last < step) return false;
      if (mark.first != step || mark.last != step) continue;
      mark.done.time += time;
      mark.done.steps += more;
      return true;
    }
  }
  return false;
}

Duration KeptSteps::take_back(std::int64_t step) {
  Duration taken{};
  for (auto& marks : widths_) {
    for (; !marks.empty(); marks.pop_back()) {
      // From the newest one back: within a width, and from one to the next, marks get older.
      const Mark mark = marks.back();
      if (mark.last < step) return taken;
      taken += mark.done.time;
      if (mark.first >= step) continue;
      marks.back() = mark.before(step);
      return taken - marks.back().done.time;
    }
  }
  return taken;
}

Duration KeptSteps::above(std::int64_t step) const {
  Duration time{};
  for (const auto& marks : widths_) {
    for (const auto& mark : marks | std::views::reverse) {
      if (mark.last <= step) return time;
      time += mark.done.time;
      if (mark.first <= step) return time - mark.before(step + 1).done.time;
    }
  }
  return time;
}

std::map<std::int64_t, KeptSteps::Done> KeptSteps::by_ranks(std::int64_t step) const {
  std::map<std::int64_t, Done> all;
  for (const auto& marks : widths_) {
    for (const auto& mark : marks) {
      if (mark.first > step) continue;
      const Done done = mark.last > step ? mark.before(step + 1).done : mark.done;
      auto& sum = all[mark.ranks];
      sum.steps += done.steps;
      sum.time += done.time;
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
