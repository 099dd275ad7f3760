// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace elastrun::goodput {

/// The steps that a job has done and not done again, each with the time that it took: over all
/// starts of the workers, as a resume at an earlier step takes back steps of any of them. Numbers
/// rise. Pure; O(1) a step, amortised, and memory grows with the logarithm of their number: older
/// neighbours become one, so that what lies behind a step is exact to its 512th part.
class KeptSteps {
 public:
  /// Neighbours that are told apart, of each width.
  static constexpr std::size_t kOfAWidth = 1024;

  /// Some of them, what they took, and what beyond that was not explained.
  struct Done {
    std::int64_t steps = 0;
    Duration time{}, gap{};
    Done& operator+=(const Done& more);
    Done& operator-=(const Done& less);
  };

  /// `done` ended with `step`, higher than any that is kept; so many ranks did it.
  void add(std::int64_t step, Done done, std::int64_t ranks = 0);
  /// Adds `more`, which may be negative, to the newest step.
  void prolong(const Done& more);
  /// Adds `more` to `step`; false where it is not kept, or not told apart any more.
  bool prolong(std::int64_t step, const Done& more);
  /// Removes `step` and all after it, which are done again.
  Done take_back(std::int64_t step);
  /// All steps above `step`.
  Done above(std::int64_t step) const;
  std::optional<std::int64_t> last() const;
  /// Those up to `step`, by how many ranks did them.
  std::map<std::int64_t, Done> by_ranks(std::int64_t step) const;

 private:
  /// One or more steps that were told, the first and the last of them.
  struct Mark {
    std::int64_t first, last;
    Done done;
    std::int64_t ranks;
    Mark before(std::int64_t step) const;
  };
  std::vector<std::deque<Mark>> widths_;  // of which each is older than the one before it
};

}  // namespace elastrun::goodput
