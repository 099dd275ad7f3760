// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/account/job_account.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "telemetry/record.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::goodput {

/// Where the time of a job went, from the journal of one node (elastrun-protocol(7)), over all
/// submissions of the job that the journal holds. Pure; O(1) a record, memory does not grow. Within
/// a submission the steady clock of its records orders and measures; between two, the wall clock.
class JournalBooks {
 public:
  /// Records of other scopes and names count and change nothing.
  void take(const telemetry::Record& record);

  /// No record follows, and no agent runs that could write one: if the last one has not told its
  /// end, it died with its last record.
  void close();

  /// One submission of the job; times since the start of the first.
  struct Submission {
    static constexpr std::size_t kMost = 256;  // later ones are only counted
    Duration at{};
    std::optional<Duration> end;    // none: it runs, or its end was never told
    std::optional<bool> succeeded;  // as its agent said
  };
  /// Keeps the history, too. To be called before any record.
  void keep_history() { keeps_history_ = true; }
  History history() const { return account_ ? account_->history(last_) : History(); }
  const std::vector<Submission>& submitted() const { return submitted_; }
  /// When the job was submitted first.
  WallTime first_wall() const { return first_wall_; }

  /// None before the first start of a job. Until the last record, or the end of the job; `beyond`:
  /// as if so much time had passed since without a record.
  std::optional<Ledger::Summary> summary(Duration beyond = {}) const;
  /// Whether the job has said how it ended, and whether its agent has said its last word.
  bool has_ended() const { return ended_ || over_; }
  bool is_over() const { return over_; }
  /// Of the last record, since the start of the job: on one axis for all submissions, never back.
  Duration elapsed() const { return last_ - TimePoint(); }
  /// Of all submissions.
  std::vector<RestartPath> restarts() const;
  /// Older ones that are not among them.
  std::uint64_t restarts_forgotten() const {
    return account_ ? account_->restarts().forgotten() : 0;
  }
  std::vector<WorkersStart> starts() const;
  const std::string& run_id() const { return run_id_; }
  int submissions() const { return submissions_; }
  /// Records that came when no job had been started, or were older than the one before.
  std::uint64_t misplaced() const { return misplaced_; }
  /// Records of jobs with another run id than the first one.
  std::uint64_t other_jobs() const { return other_jobs_; }
  /// Entries that recorders in workers could not tell.
  std::uint64_t lost() const { return lost_; }

 private:
  TimePoint time_of(const telemetry::Record& record);
  void begin(const telemetry::Record& record);
  void take_agent(const telemetry::Record& record, TimePoint now);
  void take_entry(const telemetry::Record& record, TimePoint now);

  std::optional<JobAccount> account_;
  std::string run_id_;
  bool over_ = false;          // the agent has gone; other submissions may follow
  bool ended_ = false;         // the job has ended, and its agent may still stand
  bool failed_group_ = false;  // a worker of the group that is being stopped did not succeed
  TimePoint mono_start_, book_start_, last_;
  WallTime first_wall_;
  int submissions_ = 0;
  std::vector<Submission> submitted_;
  bool keeps_history_ = false;
  bool of_other_job_ = false;
  std::uint64_t misplaced_ = 0, other_jobs_ = 0, lost_ = 0;
};

struct MeasuredBooks {
  Ledger::Summary summary;
  History history;
  std::uint64_t duplicates = 0;  // the same entry again: left out
  std::uint64_t misplaced = 0;   // before the start of the job, or after its end: left out
  double first = 0, last = 0;    // POSIX seconds of the first start of the job and the last entry
};

/// The true books of a log of ml-goodput-measurement: each second in one bucket, in whatever order
/// the entries have come. None if the log has no start of the job.
///
/// What that log does not say is taken so: a step lasts until the next one begins; the last one
/// before a restart as long as the others of its start on average; from then until the next start
/// of the job is Restart. The same number again is the same step (several ranks), a lower one a
/// resume. A phase counts if its end is there; an evaluation or a load within a step is not
/// progress.
std::optional<MeasuredBooks> keep_books(const MeasurementLog& log);

/// Counts how often the wall clock of an agent's machine was set, or the machine slept, as its
/// records show. No time is measured by that clock but the one between two submissions.
class ClockSteps {
 public:
  /// All records of one journal, in order.
  void take(const telemetry::Record& record) { take(record, record.stamp); }
  /// One whose stamp was another one.
  void take(const telemetry::Record& record, const telemetry::Stamp& stamp) {
    if (record.scope != "elastrun.agent") return;  // others have times of workers
    if (record.name == "job.started") last_.reset();
    const auto wall = stamp.wall.time_since_epoch();
    const auto mono = stamp.mono.time_since_epoch();
    std::int64_t apart = 0;
    if (__builtin_sub_overflow(wall.count(), mono.count(), &apart)) return;
    std::int64_t moved = 0;
    const bool far = last_ && (__builtin_sub_overflow(apart, *last_, &moved) ||
                               moved > kLeast.count() || moved < -kLeast.count());
    count_ += far ? 1 : 0;
    last_ = apart;
  }
  std::uint64_t count() const { return count_; }
  void add(const ClockSteps& others) { count_ += others.count_; }

 private:
  // A clock that is disciplined by slewing moves 0.5 ms a second at most; both clocks of a record
  // are read within a moment, in which this process may have to wait for a core.
  static constexpr Duration kLeast = std::chrono::milliseconds(500);
  std::optional<std::int64_t> last_;
  std::uint64_t count_ = 0;
};

/// The journals of several agents of one job as the journal of one agent: at each time that of the
/// lowest group rank counts, which is where steps are told. All times are by the wall clocks of
/// their machines, as they were when each journal began. Pure.

/// What has to be known of one agent's journal before it is read together with others.
class JournalOutline {
 public:
  /// In the order of the rounds of a job.
  using Number = std::pair<std::int64_t, std::int64_t>;  // epoch, round
  struct Round {
    Number number;
    std::int64_t group_rank = 0;
    WallTime at;
  };

  /// All records in order; most of them tell nothing that is needed.
  void take(const telemetry::Record& record);
  /// Whether a line may hold more than the time of a record, so that others need not be read.
  static bool concerns(std::string_view line);

  /// When `at` of its steady clock was; that measures within a journal, because it is never set.
  WallTime time_of(TimePoint at) const;
  /// Empty if the line that told it was torn.
  const std::string& run_id() const { return run_id_; }
  /// Only a journal of one submission is read together with others.
  bool is_of_one_submission() const { return submissions_ == 1; }
  WallTime begin() const { return begin_; }
  /// Of what counts: an agent that leaves the job to others tells nothing after its last stop.
  WallTime end() const { return end_; }
  /// It tells how the job ended, and not only that it left.
  bool tells_end() const { return tells_end_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  /// Its round at `at`: the last one, or before that the first.
  const Round* round_at(WallTime at) const;
  /// The first one from `at` on.
  const Round* round_after(WallTime at) const;

 private:
  std::string run_id_;
  int submissions_ = 0;
  bool begun_ = false, tells_end_ = false;
  WallTime begin_, end_;
  Duration offset_{};  // of the wall clock from the steady one
  std::optional<WallTime> stopping_;
  bool left_ = false;
  std::vector<Round> rounds_;
};

/// Which of these journals are of one submission: those of one run id that overlap in time,
/// and have not the same place in the same round.
std::vector<std::vector<std::size_t>> submissions_of(const std::vector<JournalOutline>& journals);

/// Takes the records of the journals of one submission, stretch by stretch.
class AgentJournals {
 public:
  /// A journal counts from `from` until before `to`.
  struct Stretch {
    std::size_t journal = 0;
    WallTime from, to = WallTime::max();
  };
  explicit AgentJournals(const std::vector<JournalOutline>& journals);
  const std::vector<Stretch>& stretches() const { return stretches_; }

  /// Over: it is of a later stretch, and so is what follows in this journal. Left out: another
  /// journal tells this time, or has told the same. Taken: its steady time is that of all now.
  enum class Verdict : std::uint8_t { Taken, LeftOut, Over };
  Verdict take(std::size_t stretch, telemetry::Record& record);

 private:
  bool was_told(const JournalOutline& journal, const telemetry::Record& record, WallTime at) const;

  const std::vector<JournalOutline>& journals_;
  std::vector<Stretch> stretches_;
  JournalOutline::Number round_{-1, -1};    // the last one that was told
  JournalOutline::Number running_{-1, -1};  // that in which the workers were told to run
  WallTime last_ = WallTime::min();
};

}  // namespace elastrun::goodput
