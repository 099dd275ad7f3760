// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "goodput/ledger/kept_steps.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::goodput {

/// Where a second of the job can go. Each second between job start and now is in exactly one.
enum class Bucket {
  Startup,     // agent start, first rendezvous, first start of workers
  Rendezvous,  // waiting for other nodes
  Running,     // workers run, and no step of this start of them is known: imports, or training;
               // also what its first step takes longer than the others
  Productive,  // steps that were not done again
  Lost,        // steps that were, or will be
  Checkpoint,  // workers said that they save or load
  Restart,     // from a failure to the next start of workers
  Stopping,    // from the end of the workers or a signal to the end of the job
  Queued,      // between the end of one submission of the job and the start of the next
  // What workers say that they do; each ends with Running.
  Initialization,  // of accelerators
  Preparation,     // of the training: building the model, compiling
  DataLoading,     // steps wait for data
  Custom,          // events with names of their own: logging
  Hang,            // no progress for longer than --hang-timeout, from the last step on
  Evaluation,
  Stalled,      // by how much a step that never came lasted beyond the usual time of one
  Unexplained,  // by how much a step was far longer than usual: work, or something not told; or
                // before its computation began, as --goodput auto tells
};
constexpr std::size_t kBuckets = 17;
/// "startup", "device_init", ...: as in reports.
std::string_view bucket_name(Bucket bucket);
/// Where the reference's monitoring books it: "PROGRAM_STARTUP", "WASTED_PROGRESS", ...; of
/// Checkpoint its saves. What it has no word for is "OTHER", and so is what workers did of whom no
/// step is known. Not of Productive, which is not a loss.
std::string_view badput_source(Bucket bucket, bool steps_known);
constexpr std::string_view kRestoreSource = "CHECKPOINT_RESTORE";

/// Where the time of a phase goes that a script or a recorder calls `name`, in letters of any case:
/// "eval" is Evaluation, "save" Checkpoint, "train" Running, and what is not known Custom.
Bucket bucket_of_phase(std::string_view name);
/// Of a phase that is Checkpoint: whether the name says loading, or saving; none: neither.
std::optional<bool> says_loading(std::string_view name);

/// When a job spent what, beside the ledger, which only knows how much. Pure, a value. However long
/// the job, memory stays bounded: beyond twice kSpans the shortest neighbours are made one span,
/// which keeps the time of each of its buckets. So the sums are those of the ledger, always.
class Timeline {
 public:
  static constexpr std::size_t kSpans = 2048;  // 144 bytes each, up to twice as many

  /// One stretch of time. Those of a timeline lie one behind the other without a gap.
  struct Span {
    Duration from{}, to{};  // since the start of the job
    std::array<Duration, kBuckets> buckets{};
    Duration length() const { return to - from; }
    Duration of(Bucket bucket) const { return buckets[static_cast<std::size_t>(bucket)]; }
    /// The bucket that most of it is in.
    Bucket most() const;
    /// Whether nothing else is in it.
    bool is_pure() const { return of(most()) == length(); }
  };

  /// What follows what is there: `time`, not negative, in `bucket`. O(1), amortised over thinning.
  void spend(Bucket bucket, Duration time);
  /// The latest `time` in `from` that lies before `until` was `to`, as it turns out. As much as
  /// there is, also after `until` if there is less before it.
  void move(Bucket from, Bucket to, Duration time, Duration until);

  const std::vector<Span>& spans() const { return spans_; }

 private:
  Duration& in(std::size_t index, Bucket bucket) {
    return spans_[index].buckets[static_cast<std::size_t>(bucket)];
  }
  Duration move_in(std::size_t index, Bucket from, Bucket to, Duration time, Duration until);
  void join(std::size_t index);
  void thin_out();

  std::vector<Span> spans_;
};

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

/// What of the Custom bucket went to which of the names that scripts give: a breakdown beside the
/// ledger, pure, told how much the bucket holds. Names are the workers': beyond kMost, and where
/// there is none, time goes to kOther.
class CustomTimes {
 public:
  static constexpr std::size_t kMost = 32;
  static constexpr std::size_t kLongest = 64;  // bytes of a name
  static constexpr std::string_view kOther = "other";

  /// From here on the bucket, which holds `so_far`, grows for `name`, in small letters: recorders
  /// write capitals.
  void enter(std::string_view name, Duration so_far);
  /// By name; they add up to `so_far`. It may have fallen, by what turned out to be a hang.
  std::map<std::string, Duration> times(Duration so_far) const;

 private:
  std::map<std::string, Duration> times_;
  std::string name_;
  Duration entered_{};  // what the bucket held then
};

/// Zero of a whole that is not positive.
double to_share(Duration part, Duration whole);

/// Which share of a time was training, from where that time went.
struct Share {
  Duration whole{};
  const std::array<Duration, kBuckets>& buckets;
  Duration doubtful{};  // of Productive
  bool steps_known = false, loss_known = true;
  Duration of(Bucket bucket) const { return buckets[static_cast<std::size_t>(bucket)]; }

  /// Whether it is one number: steps were reported, and so was what failures cost, and no time
  /// between steps is unexplained that would change the first digit after the point.
  bool is_known() const;
  std::optional<double> known() const { return is_known() ? std::optional(least()) : std::nullopt; }
  /// The most that it can have been. Where steps are reported, what lies before the first one is
  /// not training; without any, all the time in which workers ran may have been.
  double most() const;
  /// The least, which is the number to show where there is room for one: without what is doubtful
  /// or unexplained; zero if nothing is known of steps or losses.
  double least() const;
  /// Whether anything says what the least is.
  bool is_bounded() const { return steps_known && (loss_known || doubtful > Duration::zero()); }
};

/// The time ledger of one job, pure: stepped with facts and their time, asked for a summary at any
/// time. The buckets always add up to the elapsed time, to the nanosecond. O(1) a fact.
/// Facts older than the last one are taken as if they had happened with it (clocks of workers).
class Ledger {
 public:
  explicit Ledger(TimePoint job_start);

  /// The next workers are so many.
  void world(std::int64_t ranks);
  /// From `now` on, seconds go to `bucket`: any but Productive and Lost, which follow from steps
  /// and failures, and Hang. Entering Running again counts as a restart, unless it comes after
  /// Checkpoint or another of the buckets that workers name. `name`: what they call it, of Custom
  /// and Checkpoint ("save", "restore").
  void enter(Bucket bucket, TimePoint now, std::string_view name = {});
  /// Rank 0's training step `step` ended. Running time is Productive from the end of the first step
  /// of this start of workers on. That step counts with the usual time of a step, as soon as it is
  /// known; what it took beyond that (compilation) is Preparation if its begin was told, and what
  /// lies before it stays Running. What a later one takes clearly beyond the usual time is
  /// Unexplained: the work of a long step, or something that the script did not tell. `watched`:
  /// something tells what lies between steps, so that only far longer ones are.
  /// The same number again is the same step. One that was done before, in whatever start, says that
  /// the job has resumed there: that step and all after it are lost, also what a checkpoint covers.
  /// But the first number of all, told by workers that go on, begins another epoch (StepNumbers).
  void step(std::int64_t step, TimePoint now, bool watched = false);
  /// A checkpoint of `step` is complete (-1: of everything so far): it is kept with what lies
  /// before, as long as the job does not do it again. The time since the last step was the save,
  /// unless a phase was told for it; a step that is under way keeps the usual time of one, and if
  /// that is not known, all is Unexplained.
  void checkpoint(std::int64_t step, TimePoint now);
  /// A checkpoint was saved, or is loaded where there was no step in this start yet, of a step that
  /// cannot be told: what failures cost has bounds, then.
  void untold_checkpoint(TimePoint now);
  /// The group failed; the step that was under way is lost. What else is kept is known with the
  /// next first step. Until then, or if none comes, steps after the last checkpoint count as lost,
  /// if one was ever reported; of a job that tells no steps, what ran since then. Seconds go to
  /// `then` from here: Restart or Stopping. So does what of the time since the last step the
  /// workers took to end, and that is the answer. `ending`: so much, if it is known; then a step
  /// that lasted far beyond its usual time was Stalled. If it is not known: all beyond that time.
  Duration failed(TimePoint now, Bucket then = Bucket::Restart,
                  std::optional<Duration> ending = std::nullopt);
  /// The workers were asked to save and end: if all was saved when they failed, none had begun
  /// another step, and what counted as lost of one goes to `to`.
  void left_after_save(Bucket to, TimePoint now);
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
  /// The first step of this start to end will be `step`: what was done from it on is lost. Else the
  /// end of the step itself, or its begin, says so.
  void resume(std::int64_t step, TimePoint now);
  /// The step `step` begins: as the first of a start of workers it says where they resumed, and
  /// that what lies before does not belong to it. Without it the first step() of a start says where
  /// at its end. Of a later one, what lies between the last step and it is Unexplained.
  void begin_step(std::int64_t step, TimePoint now);
  /// Books `time` that went to `from` to `to` instead, at most all of it: what it was for is known
  /// only later. Neither may be Running, Productive or Lost.
  void rebook(Bucket from, Bucket to, Duration time, TimePoint now);

  /// Books what workers of this start did until now to `to`, if there was no step yet.
  void rebook_running(Bucket to, TimePoint now);

  struct Summary {
    Duration elapsed{};
    std::array<Duration, kBuckets> buckets{};  // adds up to elapsed
    std::map<std::string, Duration> custom{};  // of the bucket, by the names that scripts give
    Duration restoring{};                      // of Checkpoint: what was loaded
    int restarts = 0;
    std::optional<std::int64_t> last_step, last_checkpoint;
    /// The last one that is kept: after a failure, until the job resumes, that of a checkpoint.
    std::optional<std::int64_t> last_kept{};
    /// Whether it is known what every failure cost: by a checkpoint that was reported before it, or
    /// by the step at which the job resumed. Otherwise more may be lost than is known.
    bool loss_known = true;
    WorkCounts work{};
    /// What the steps that are kept would have taken with as many ranks as ever, at the pace of
    /// these; none where all were done with as many.
    std::optional<Duration> at_full_pace{};
    Duration doubtful{};   // of Productive: steps that may have been done again, or will be
    int untold_saves = 0;  // checkpoints of steps that could not be told
    int begun_again = 0;   // how often step numbers were, by workers that went on
    Duration repeated{};   // of the buckets: what starts but the first took until their first step
    Duration of(Bucket bucket) const { return buckets[static_cast<std::size_t>(bucket)]; }
    bool steps_known() const { return last_step.has_value(); }
    Share share() const { return {elapsed, buckets, doubtful, steps_known(), loss_known}; }
    std::optional<double> goodput() const { return share().known(); }
    double goodput_at_most() const { return share().most(); }
    double goodput_at_least() const { return share().least(); }
  };
  Summary summary(TimePoint now) const;
  /// What is Productive so far, failures not counted whose cost is not known yet.
  Duration productive() const { return spent(Bucket::Productive); }

  /// Of what counts as Productive, the time of steps of earlier starts that had counted as Lost:
  /// each once. A start that warms up before it loads its checkpoint looks begun from nothing.
  Duration take_regained() { return std::exchange(regained_, {}); }

  std::optional<std::int64_t> last_step() const { return last_step_; }
  /// As facts have booked it so far.
  Duration spent(Bucket bucket) const { return buckets_[static_cast<std::size_t>(bucket)]; }

  /// Keeps when it was, too. To be called before any fact.
  void keep_timeline() { timeline_.emplace(); }
  /// Empty where that is not kept. Its sums are those of the summary.
  std::vector<Timeline::Span> timeline(TimePoint now) const;

 private:
  void correct_excesses();
  Duration take_back_save(Duration& time, Duration covered, std::int64_t steps);
  bool book_save(std::int64_t step);
  void leave_unexplained(Duration time);
  static Duration until_first_steps(const std::array<Duration, kBuckets>& buckets);
  Duration& of(Bucket bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  Bucket bucket_now() const;
  void progressed();
  Duration hang_takes(Bucket from, Duration most);
  void settle(TimePoint now);
  KeptSteps::Done go_back(std::int64_t step, TimePoint until);
  void resume_at(std::int64_t step);
  void next_step(std::int64_t step, bool watched);
  bool redo_undone(std::int64_t step, Duration time);
  void first_step(std::int64_t step);
  void credit_first(std::optional<Duration> usual);
  void catch_up(Duration& time, std::int64_t steps);
  Duration break_off(Bucket then, std::optional<Duration> ending);
  void end_first_step();
  std::optional<Duration> at_full_pace() const;
  void move(Bucket from, Bucket to, Duration time, TimePoint until);
  std::optional<std::int64_t> resumes_after() const;
  KeptSteps::Done lost_at_the_end() const;
  Duration doubtful() const;
  Duration excess_so_far(Duration passed) const;
  /// Where Lost comes from at the end: of a job that tells no steps, from what ran.
  Bucket work() const { return last_step_ ? Bucket::Productive : Bucket::Running; }

  TimePoint start_, last_;
  Bucket current_ = Bucket::Startup;
  std::array<Duration, kBuckets> buckets_{};
  StepNumbers numbers_;
  KeptSteps kept_;
  UsualStep usual_;
  // Of a start, after which the time of its first one is settled.
  static constexpr std::size_t kFirstSteps = 8;
  std::vector<Duration> first_steps_;
  struct FirstStep {
    std::int64_t step, before;    // it, and the last one of what the start resumed from
    Duration most{}, credited{};  // of Running: at most its time; what counts of that
    TimePoint at{};
    std::int64_t steps = 1;  // that end with it
  };
  std::optional<FirstStep> first_;  // of this start, as long as its time is not settled
  struct Undone {
    KeptSteps kept;
    KeptSteps::Done lost{};
    std::int64_t first = 0, stride = 1;  // step of the start; stride before it
  };
  std::optional<Undone> undone_;  // by the first step of this start, until it saves or fails
  Duration regained_{};
  bool begun_ = false;        // the begin of the first step was told
  bool under_way_ = false;    // so was that of a step that has not ended
  bool apart_ = false;        // and that was after the end of the step before it
  bool unclear_ = false;      // it was saved before its end, and nothing says how long that took
  bool resting_ = false;      // all steps are in a checkpoint, and no other has begun
  Duration perhaps_begun_{};  // that counts as lost, of the last start that failed so
  Duration lead_{};           // Running since then, or in one piece until its end
  std::int64_t ranks_ = 0;
  bool several_worlds_ = false;
  std::int64_t stride_ = 1;           // how many steps were told at once, the last time
  std::int64_t safe_before_ = 0;      // in a checkpoint, before this start
  Duration late_{};                   // of the last gap, as long as steps may make up for it
  Duration saved_{};                  // book_save() since the last step
  Duration gap_{};                    // leave_unexplained() of the step under way
  Duration before_restarts_{};        // until_first_steps() of the first start
  Duration unmarked_{};               // Productive, and of no step that has ended
  Duration covered_{};                // of the step under way, before a checkpoint that holds it
  Duration running_{};                // Running, in this start
  Duration uncovered_{}, exposed_{};  // Running since the last checkpoint; that of failed starts
  bool broken_ = false;               // a start failed, and no step has said since what is kept
  TimePoint broken_at_, stepped_at_;  // the last failure, the end of the last step
  std::optional<Timeline> timeline_;
  bool checkpoint_seen_ = false;
  bool steps_seen_ = false;  // since the workers were started
  bool stepped_ = false;     // a step of this start has ended
  bool ran_ = false;
  std::array<Duration, kBuckets> since_progress_{};  // of this start, after its last progress
  Duration since_step_{};  // Productive, after the last step of this start that is known
  bool hanging_ = false;
  WorkCounter counter_;
  CustomTimes custom_, checkpoints_;
  static constexpr std::string_view kLoading = "restore";
  int restarts_ = 0;
  std::optional<std::int64_t> last_step_, last_checkpoint_, safe_step_;
};

/// Says in a few words what a bucket is, in the books of this job.
std::string_view bucket_meaning(Bucket bucket, const Ledger::Summary& summary);

}  // namespace elastrun::goodput
