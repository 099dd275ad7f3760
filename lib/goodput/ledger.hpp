// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "goodput/bucket.hpp"
#include "goodput/timeline.hpp"
#include "goodput/work_counts.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace elastrun::goodput {

/// The time ledger of one job, pure: stepped with facts and their time, asked for a summary at any
/// time. The buckets always add up to the elapsed time, to the nanosecond. O(1) a fact.
/// Facts older than the last one are taken as if they had happened with it (clocks of workers).
class Ledger {
 public:
  explicit Ledger(TimePoint job_start);

  /// From `now` on, seconds go to `bucket`: any but Productive and Lost, which follow from steps
  /// and failures, and Hang. Entering Running again counts as a restart, unless it comes after
  /// Checkpoint or another of the buckets that workers name.
  void enter(Bucket bucket, TimePoint now);
  /// Rank 0's training step `step` ended. Running time is Productive from the first step of this
  /// start of workers on; what lies before it (imports, the first compilation) stays Running.
  /// The same number again is the same step; a lower one says that the job has resumed there, and
  /// what was done from it on is lost.
  void step(std::int64_t step, TimePoint now);
  /// A checkpoint of `step` is complete (-1: of everything so far): what lies before is kept.
  void checkpoint(std::int64_t step, TimePoint now);
  /// The group failed. What of its work is kept is known with the next first step: steps before it
  /// are, what lies after them is lost. Until then, or if none comes, what ran since the last
  /// checkpoint counts as lost, if one was ever reported. Seconds go to Restart from here.
  void failed(TimePoint now);
  /// The workers have ended well: what followed their last step (a barrier, the interpreter's end)
  /// was no training, and goes from Productive to `to`. So does what followed a later checkpoint,
  /// if that holds a step beyond the last one that was told.
  void end_steps(Bucket to, TimePoint now);
  /// This start of the workers ended by a failure, not by a requeue or a change of membership.
  /// Told again before the next start it is the same one. Changes no bucket.
  void count_failure() { counter_.failed(); }
  /// No worker has made progress for `standing`: as much of the time since the last step or
  /// checkpoint was Hang, and so is what follows, until there is one or the workers end.
  void hang(Duration standing, TimePoint now);
  /// The step `step` begins: as the first of a start of workers it says where they resumed, and
  /// time is Productive from here. Without it the first step() of a start says the same at its end.
  void begin_step(std::int64_t step, TimePoint now);
  /// Books `time` that went to `from` to `to` instead, at most all of it: what it was for is known
  /// only later. Neither may be Running, Productive or Lost.
  void rebook(Bucket from, Bucket to, Duration time, TimePoint now);

  /// Books what workers of this start did until now to `to`, if there was no step yet.
  void rebook_running(Bucket to, TimePoint now);

  struct Summary {
    Duration elapsed{};
    std::array<Duration, kBuckets> buckets{};  // adds up to elapsed
    int restarts = 0;
    std::optional<std::int64_t> last_step, last_checkpoint;
    /// Whether it is known what every failure cost: by a checkpoint that was reported before it, or
    /// by the step at which the job resumed. Otherwise more may be lost than is known.
    bool loss_known = true;
    WorkCounts work{};
    Duration of(Bucket bucket) const { return buckets[static_cast<std::size_t>(bucket)]; }
    bool steps_known() const { return last_step.has_value(); }
    /// Productive / elapsed, if that is known: steps were reported, and so was what failures cost.
    std::optional<double> goodput() const;
    /// The most that it can have been. Where steps are reported, what lies before the first one is
    /// no training; where none are, all the time in which workers ran may have been.
    double goodput_at_most() const;
  };
  Summary summary(TimePoint now) const;
  /// What is Productive so far, failures not counted whose cost is not known yet.
  Duration productive() const { return buckets_[static_cast<std::size_t>(Bucket::Productive)]; }

  /// Keeps when it was, too. To be called before any fact.
  void keep_timeline() { timeline_.emplace(); }
  /// Empty where that is not kept. Its sums are those of the summary.
  std::vector<Timeline::Span> timeline(TimePoint now) const;

 private:
  /// Time that counts as good but no checkpoint covers yet, by the bucket it is in.
  struct Uncovered {
    Duration running{}, productive{};
    Duration total() const { return running + productive; }
  };
  struct Mark {
    std::int64_t step;
    Uncovered until;  // at the end of that step
  };
  struct Work {
    Uncovered uncovered;
    std::vector<Mark> marks;  // ascending; thinned out when many
    void cover(std::int64_t step);
  };
  Duration& of(Bucket bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  Bucket bucket_now() const;
  void progressed();
  Duration take_back(Bucket from, Duration most);
  void settle(TimePoint now);
  void thin_out();
  void forget_marks();
  void resume(std::int64_t step);
  void go_back(std::int64_t step);
  void lose(Uncovered lost, TimePoint until);
  void move(Bucket from, Bucket to, Duration time, TimePoint until);
  Uncovered lost_at_the_end() const;

  TimePoint start_, last_;
  Bucket current_ = Bucket::Startup;
  std::array<Duration, kBuckets> buckets_{};
  Work work_;                         // of this start of the workers
  std::optional<Work> broken_;        // of failed ones, until the next first step says what is kept
  TimePoint broken_at_, stepped_at_;  // the last failure, the end of the last step
  std::optional<Timeline> timeline_;
  std::size_t steps_per_mark_ = 1, in_last_mark_ = 0;
  bool checkpoint_seen_ = false;
  bool steps_seen_ = false;  // since the workers were started
  bool ran_ = false;
  std::array<Duration, kBuckets> since_progress_{};  // of this start, after its last progress
  Duration since_step_{};  // Productive, after the last step of this start that is known
  bool hanging_ = false;
  WorkCounter counter_;
  int restarts_ = 0;
  std::optional<std::int64_t> last_step_, last_checkpoint_;
};

}  // namespace elastrun::goodput
