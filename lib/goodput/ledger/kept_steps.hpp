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

  /// Some of them, and what they took.
  struct Done {
    std::int64_t steps = 0;
    Duration time{};
  };

  /// `done` ended with `step`, higher than any that is kept; so many ranks did it.
  void add(std::int64_t step, Done done, std::int64_t ranks = 0);
  /// The newest step took so much longer.
  void prolong(Duration time);
  /// So did `step`, or less, which was so many `more` steps; false where it is not kept, or not
  /// told apart any more.
  bool prolong(std::int64_t step, Duration time, std::int64_t more = 0);
  /// `step` and all after it are done again; the time that they took.
  Duration take_back(std::int64_t step);
  /// What all steps above `step` took.
  Duration above(std::int64_t step) const;
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
