// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "telemetry/record.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::goodput {

/// Where the agent of a node stands: what it decides by, and what its journal's `phase` events say.
enum class NodePhase {
  Joining,   // waits for the other nodes
  Starting,  // starts the workers
  Running,
  Settling,  // a worker failed because of another one, which is about to end
  Stopping,  // ends the group
  Waiting,   // the group is gone; waits to be told whether to restart
  Barrier,   // all workers of this node have succeeded; waits for the other nodes
  Ended,
};
/// "joining", "starting", ...: as in the journal.
std::string_view phase_name(NodePhase phase);
std::optional<NodePhase> phase_named(std::string_view name);
/// That of a record of an agent; none if it is not such an event, or names one that is not known.
std::optional<NodePhase> phase_of(const telemetry::Record& record);

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
