// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/run_context.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <optional>
#include <string>

namespace elastrun::agent {

/// What asks a job to save and end besides signals and elastrunctl: a file that appears
/// (--preempt-file), and the end that Slurm has told for the job's allocation.
class PreemptionSources {
 public:
  /// The time to save in before an end that is known: twice what a save has taken, at least
  /// kLeast; before any save is known kUnknown. At most --preempt-timeout, or kMost without it, and
  /// half of the time that was left at the start.
  static constexpr Duration kLeast = std::chrono::seconds(10), kUnknown = std::chrono::seconds(60),
                            kMost = std::chrono::minutes(5);

  /// Does nothing for a job that has no preemption options. `end`: SLURM_JOB_END_TIME; empty: none.
  PreemptionSources(RunContext& run, const std::string& end);
  ~PreemptionSources() { lifetime_.end(); }

  /// A save has taken so long.
  void save_takes(Duration time);

 private:
  void watch_file();
  void await_event();
  void look();
  void arm();

  RunContext& run_;
  const std::string file_;
  const Duration timeout_;
  std::optional<TimePoint> end_;
  Duration most_ = kMost, margin_ = kUnknown;
  std::unique_ptr<Alarm> alarm_, again_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> events_;
  std::array<char, 4096> buffer_{};
  bool is_old_ = false;   // it was there before the job, and could not be removed
  bool is_gone_ = false;  // its folder
  Lifetime lifetime_;
};

/// How long before the end that a scheduler has told a job begins to save: at most `most`. Pure.
Duration preemption_margin(std::optional<Duration> save, Duration most);

}  // namespace elastrun::agent
