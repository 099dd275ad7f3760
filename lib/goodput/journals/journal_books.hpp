// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "goodput/account/job_account.hpp"
#include "goodput/compat/measurement_log.hpp"
#include "telemetry/record.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
  History history() const;
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

}  // namespace elastrun::goodput
