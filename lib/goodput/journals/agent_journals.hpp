// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::goodput {

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
