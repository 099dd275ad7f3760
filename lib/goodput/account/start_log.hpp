// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::goodput {

/// One start of the workers, until their group has gone.
struct WorkersStart {
  std::int64_t number = 1;  // 1 is the first one of the job
  Duration at{};            // since the start of the job
  Duration ran{};
  std::optional<std::int64_t> first_step, last_step;
  Duration productive{};  // of `ran`, as far as its steps were kept
  std::string ended;      // how, for people; empty: it runs
  double goodput() const;
  /// What it did is known: steps that it has told, or one that it has only begun.
  bool knows_steps() const { return first_step || productive > Duration::zero(); }
};

/// The starts of the workers of a job, each with the steps that it did and the share of its time
/// that was kept. Pure; stepped by the ledger's owner, with its `productive` time.
class StartLog {
 public:
  static constexpr std::size_t kMost = 256;  // the last ones are kept

  explicit StartLog(TimePoint job_start) : job_start_(job_start) {}

  /// Ends the one before, where that has not been told.
  void begin(TimePoint now, Duration productive);
  /// The first step of a start may show that steps of earlier ones are lost.
  void step(std::int64_t number, Duration productive);
  /// What is productive now, before it ends or at any other time within a start.
  void settle(Duration productive);
  /// So much of what the first step of this start took from earlier ones is theirs after all.
  void regain(Duration time);
  /// The group has gone; said again it counts once.
  void end(TimePoint now, Duration productive);
  /// How the last one ended; the first that is said of it, unless `better`.
  void why(std::string text, bool better = false);

  /// In order. `productive`: what is, with all that is known to be lost at `now`.
  std::vector<WorkersStart> starts(TimePoint now, Duration productive) const;

 private:
  void lose(Duration lost);

  const TimePoint job_start_;
  std::deque<WorkersStart> starts_;
  std::deque<Duration> taken_;  // from each of them, since the last one began
  std::int64_t count_ = 0;
  TimePoint begun_;
  bool open_ = false;
  Duration productive_{};  // of the whole job, as far as it is in a row or was lost
};

}  // namespace elastrun::goodput
