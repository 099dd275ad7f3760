// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "goodput/ledger/bucket.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace elastrun::goodput {

/// How much work a job has done, beside the time by bucket of its ledger.
struct WorkCounts {
  int failures = 0;  // of workers, nodes and machines; no requeue, no change of membership
  std::int64_t checkpoints = 0;  // completed; one that several ranks report is one
  std::int64_t saves = 0;        // whose time is known; several without a step between are one
  Duration saving{};             // that these took
  std::int64_t steps = 0;        // whose time is known: not the first one of a start
  Duration stepping{};           // that these took, with waiting for data, without saving

  std::optional<Duration> mean_save() const;
  std::optional<Duration> mean_step() const;
  /// Steps from one checkpoint to the next, on average.
  std::optional<double> checkpoint_interval() const;
  bool operator==(const WorkCounts&) const = default;
};

/// Counts them. Pure, O(1) a fact.
class WorkCounter {
 public:
  /// Workers start; what they do before their first step is not timed.
  void start();
  /// Called again before the next start it is the same failure.
  void failed();
  void passed(Bucket bucket, Duration time);
  /// The step that is under way hangs, and is not timed.
  void hangs() { hangs_ = true; }
  /// So much of the time since the step before was perhaps no part of one.
  void unexplained(Duration time) { since_step_ -= std::min(time, since_step_); }
  /// So much of the time since the last step was a save, which no phase told.
  void saved(Duration time) {
    save_begins();
    counts_.saving += time;
    unexplained(time);
  }
  /// So much of that was the time of the step that ends now.
  void took_back_save(Duration time) {
    counts_.saving -= std::min(time, counts_.saving);
    since_step_ += time;
  }
  /// So much of what was told as such was the time of steps.
  void made_up(Duration time) { counts_.stepping += time; }
  void save_begins();
  void step(std::int64_t number);
  /// `number` of its step, as far as that is known.
  void checkpoint(std::optional<std::int64_t> number);
  const WorkCounts& counts() const { return counts_; }

 private:
  WorkCounts counts_;
  std::optional<std::int64_t> last_step_, last_checkpoint_;  // of this start
  Duration since_step_{};
  bool saved_ = true;  // since the last step
  bool hangs_ = false;
  bool failed_ = false;
};

}  // namespace elastrun::goodput
