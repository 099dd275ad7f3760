// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "goodput/account/node_phase.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::goodput {

/// What a restart consists of, in this order.
enum class RestartStage {
  Exit,        // from the error of the worker that failed, or what was its last step, to its end
  Detect,      // from the end of the worker that failed until the agent stops the others
  Stop,        // until the group is gone
  Rendezvous,  // until all nodes have met again
  Spawn,       // until the workers run
  FirstStep,   // imports, initialisation, loading: until the first step is done
  Redo,        // until the step is done that was the last one before
};
constexpr std::size_t kRestartStages = 7;
/// "exit", "detect", ...: as in the report.
std::string_view stage_name(RestartStage stage);

/// One restart, from its cause to where the job stood before it.
struct RestartPath {
  std::string cause;
  Duration at{};  // since the start of the job: of the cause, or of its news from another node
  std::array<Duration, kRestartStages> stages{};
  std::optional<std::int64_t> last_step;   // before it
  std::optional<std::int64_t> first_step;  // after it
  bool caught_up = false;                  // last_step was done again, or was not lost
  Duration of(RestartStage stage) const { return stages[static_cast<std::size_t>(stage)]; }
  Duration total() const;
};

/// The waterfall of the restarts of a job, from what its agent does and its workers report, in the
/// order in which it happens. Pure. Where no steps are reported the last two stages stay zero.
class RestartLog {
 public:
  static constexpr std::size_t kMost = 256;  // the last ones are kept

  explicit RestartLog(TimePoint job_start) : job_start_(job_start) {}

  void phase(NodePhase phase, TimePoint now);
  /// The worker that failed first had ended that long before the group was stopped. How much of
  /// that lies before this restart was seen to begin.
  Duration noticed_after(Duration time);
  /// The failing worker took so long to end.
  void exited_in(Duration time);
  void restarting(std::string cause, TimePoint now);
  void step(std::int64_t number, TimePoint now);

  /// In order; the last one may be going on.
  const std::vector<RestartPath>& paths() const { return paths_; }
  std::uint64_t forgotten() const { return forgotten_; }

 private:
  void begin(RestartStage stage, TimePoint now);
  void advance(RestartStage stage, TimePoint now);
  void settle(TimePoint now);
  RestartPath* going_on();

  const TimePoint job_start_;
  std::vector<RestartPath> paths_;
  std::optional<RestartPath> next_;  // the group is being stopped: for a restart, or for the end
  bool open_ = false;                // the last path has not caught up
  RestartStage stage_ = RestartStage::Detect;
  TimePoint since_;
  std::optional<std::int64_t> last_step_;
  std::uint64_t forgotten_ = 0;
};

}  // namespace elastrun::goodput
