// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::goodput {

/// Times beyond 75 years count as that: what a hostile journal says must not overflow.
constexpr Duration bounded(Duration time) {
  constexpr Duration kFarthest = std::chrono::years(75);
  return std::clamp(time, -kFarthest, kFarthest);
}
constexpr TimePoint bounded(TimePoint time) {
  return TimePoint(bounded(time.time_since_epoch()));
}

/// By how much two steady clocks may come apart in that time: 100 ppm.
constexpr Duration drift_in(Duration time) {
  return std::max(time, Duration::zero()) / 10'000;
}

/// What has to be known of one agent's journal before it is put together with those of others: its
/// rounds, its times, and how far its clock was from the coordinator's. Pure.
class JournalOutline {
 public:
  struct Round {
    std::int64_t epoch = 0, number = 0, group_rank = 0;
    std::string master;               // address and port: rounds of two jobs have the same numbers
    TimePoint at;                     // this agent's steady clock, as all times here
    std::optional<TimePoint> gone{};  // when this agent's group had ended
    /// Whether two agents mean the same round.
    bool is(const Round& other) const {
      return epoch == other.epoch && number == other.number && master == other.master;
    }
  };

  /// What an agent has learnt of the clock of its coordinator.
  struct Clock {
    TimePoint at;
    Duration offset{}, error{};
    std::int64_t epoch = 0;  // of the coordinator; -1: not told, as in an older release
  };

  /// All records in order; most of them tell nothing that is needed.
  void take(const telemetry::Record& record);
  /// Whether a line may hold more than the time of a record, so that others need not be read.
  static bool concerns(std::string_view line);

  /// One submission of a job, and not several in one file: only such a journal is put together with
  /// others.
  bool is_of_one_submission() const { return submissions_ == 1; }
  /// Empty where the line that told it was torn.
  const std::string& run_id() const { return run_id_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  bool knows_clock() const { return !clocks_.empty(); }
  const std::vector<Clock>& clocks() const { return clocks_; }
  void set_clocks(std::vector<Clock> clocks) { clocks_ = std::move(clocks); }
  /// By how much its times may be wrong at most, also long after what it has learnt; zero where it
  /// does not know.
  Duration clock_error() const;
  /// Whether it tells how the job or its agent has ended.
  bool has_ended() const { return ended_; }
  /// Whether that was the agent alone, without which the job may go on.
  bool has_left() const { return left_; }
  /// Whether the agent was in a round and joined another one that never came.
  bool waits() const { return waits_; }

  /// On the coordinator's clock; where that was not learnt, on this machine's wall clock, as it was
  /// at the first record. Neither is ever set.
  WallTime common(TimePoint at) const;
  TimePoint begin() const { return begin_; }
  TimePoint end() const { return end_; }

 private:
  void take_clock(const telemetry::Record& record, TimePoint at);

  std::string run_id_;
  int submissions_ = 0;
  bool begun_ = false, ended_ = false, left_ = false, waits_ = false;
  TimePoint begin_, end_;
  Duration own_offset_{};  // of the wall clock
  std::vector<Round> rounds_;
  std::vector<Clock> clocks_;
};

/// The event in which an agent tells its clock; its attributes: how far the coordinator's clock, in
/// nanoseconds since the epoch, is ahead of the steady clock of this agent, by how much that may be
/// wrong, and the epoch of the rendezvous in which that coordinator took it in.
inline constexpr std::string_view kClockRecord = "clock.offset";
inline constexpr std::string_view kClockOffset = "offset_ns", kClockError = "error_s",
                                  kClockEpoch = "epoch";

}  // namespace elastrun::goodput
