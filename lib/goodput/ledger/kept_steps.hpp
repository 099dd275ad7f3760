// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <boost/circular_buffer.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
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

/// The numbers under which the steps of a job are counted, from those that its scripts tell. They
/// differ where a script counts each epoch from the beginning, though it repeats no work; and
/// where nothing tells at which step it resumed, so that it counts from the beginning. Then it is
/// taken to have resumed where it can have at best, and the steps before that are doubtful. Pure.
class StepNumbers {
 public:
  using Number = std::int64_t;
  /// Workers start: their first step says where they resume.
  void start() { begun_ = loaded_ = false; }
  /// A checkpoint was saved, or loaded if there was no step in this start yet, of a step that is
  /// not known. `last`: of those that are counted.
  void untold(std::optional<Number> last);
  /// Of a step that the job tells, or of its begin. `safe`: the last one that a checkpoint holds;
  /// `stride`: how many steps lie between those that are told.
  Number of_step(Number told, std::optional<Number> last, std::optional<Number> safe,
                 Number stride = 1);
  /// Of a checkpoint.
  Number of_checkpoint(Number told, std::optional<Number> last) const;

  /// Whether the steps up to this one were kept cannot be told.
  std::optional<Number> doubtful() const { return doubtful_; }
  /// The last one that may be in a checkpoint of an untold step.
  std::optional<Number> perhaps_safe() const { return saved_; }
  int untold_saves() const { return saves_; }
  /// How often steps began again in workers that went on.
  int begun_again() const { return begun_again_; }

 private:
  Number first_of_start(Number told, Number last, std::optional<Number> safe);
  void doubt(Number until) { doubtful_ = std::max(doubtful_, std::optional(until)); }

  std::optional<Number> base_;           // the first one that was told, ever
  Number ahead_ = 0, ahead_before_ = 0;  // of what is told; of the epoch before this one
  bool begun_ = false, loaded_ = false;  // in this start
  std::optional<Number> saved_, doubtful_;
  int saves_ = 0, begun_again_ = 0;
};

/// How long a step usually takes, and what one took beyond that for no known reason. Pure.
///
/// A step that is clearly longer than the shorter ones did work, or the script did something else
/// meanwhile: only the script knows. So the pace is that of the shorter quarter of the last steps
/// and of what is about as long; a few of any length change nothing. If the pace itself becomes
/// slower, nearly all later steps show that, and explain those before them. The first steps are
/// compared with those after them.
class UsualStep {
 public:
  static constexpr std::size_t kKept = 31;
  /// One or more that were told at once.
  struct Steps {
    std::int64_t last = 0, count = 1;
    Duration time{};
    Duration covered{};    // before that, by a checkpoint in the middle
    Duration excess{};     // of `time`; as excess() has it
    bool measure = true;   // else the time holds more than the step
    bool watched = false;  // as excess() has it
  };
  void add(const Steps& steps);
  /// The last excess is smaller by so much; of which step it is.
  std::optional<std::int64_t> made_up(Duration time) {
    if (recent_.empty()) return std::nullopt;
    recent_.back().time -= time;
    recent_.back().excess -= time;
    return recent_.back().last;
  }
  /// By how much more (or less) of a recent step, or of the one just added, is excess than was
  /// said before; each correction once.
  std::vector<std::pair<std::int64_t, Duration>> take_corrections() {
    return std::exchange(corrections_, {});
  }
  /// `step` and those after it are not kept: later ones explain none of them.
  void forget(std::int64_t step) {
    std::erase_if(recent_, [step](const Steps& one) { return one.last >= step; });
  }
  void clear() { *this = {}; }

  std::size_t known() const { return times_.size(); }
  /// That of `steps` of them; none before the first one.
  std::optional<Duration> time(std::int64_t steps = 1) const;
  /// As time(): what the next ones take at most, if they vary as the last ones do.
  std::optional<Duration> at_most(std::int64_t steps) const;
  /// What of `time` is beyond the usual time of `steps`, if it is clearly longer; else zero.
  /// `watched`: something tells what lies between steps, and they vary by their data.
  Duration excess(Duration time, std::int64_t steps, bool watched = false) const;

 private:
  void measure(Duration time);

  boost::circular_buffer<Duration> times_{kKept};
  Duration brief_{}, pace_{}, longest_{};  // of these
  std::size_t measured_ = 0;               // at most one more than are kept
  std::deque<Steps> recent_;               // what may be corrected
  std::vector<std::pair<std::int64_t, Duration>> corrections_;
};

}  // namespace elastrun::goodput
