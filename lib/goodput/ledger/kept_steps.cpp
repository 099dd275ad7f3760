// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/kept_steps.hpp"

#include <algorithm>
#include <ranges>

namespace elastrun::goodput {

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
