// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/ledger/ledger.hpp"
#include "telemetry/record.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <map>
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

/// What has a start and an end, and where its time goes.
struct MeasuredPhase {
  MeasurementKind start, end;
  Bucket bucket;
  std::string_view name{};  // for Ledger::enter
};
inline constexpr MeasuredPhase kMeasuredPhases[] = {
    {MeasurementKind::AcceleratorInitStart, MeasurementKind::AcceleratorInitEnd,
     Bucket::Initialization},
    {MeasurementKind::PreparationStart, MeasurementKind::PreparationEnd, Bucket::Preparation},
    {MeasurementKind::DataLoadingStart, MeasurementKind::DataLoadingEnd, Bucket::DataLoading},
    {MeasurementKind::CustomStart, MeasurementKind::CustomEnd, Bucket::Custom},
    {MeasurementKind::ElasticWaitStart, MeasurementKind::ElasticWaitEnd, Bucket::Rendezvous},
    {MeasurementKind::ElasticReinitStart, MeasurementKind::ElasticReinitEnd, Bucket::Restart},
    {MeasurementKind::SaveStart, MeasurementKind::SaveEnd, Bucket::Checkpoint, "save"},
    {MeasurementKind::RestoreStart, MeasurementKind::RestoreEnd, Bucket::Checkpoint, "restore"},
};

/// How long the steps of a job took, in the order in which they were done. Pure. Memory stays
/// bounded: beyond twice kPoints neighbours become one point, which keeps the shortest and the
/// longest of its steps.
class StepSeries {
 public:
  static constexpr std::size_t kPoints = 1024;

  struct Point {
    Duration at{};                     // since the start of the job: the end of its last step
    std::int64_t first = 0, last = 0;  // numbers of its first and its last step
    Duration min{}, max{}, sum{};      // of the times of its steps
    std::uint64_t count = 0;
    Duration mean() const { return sum / static_cast<std::int64_t>(count); }
  };

  /// Step `number` begins.
  void begin(std::int64_t number, Duration at);
  /// Step `number` ended: since its begin, or the end of the one that was told last. Where numbers
  /// are left out the time is that of each of them on average.
  void end(std::int64_t number, Duration at);
  /// The time from here to the next begin or end is that of no step.
  void interrupt() { known_.reset(); }

  const std::vector<Point>& points() const { return points_; }

 private:
  struct Known {
    double done;  // the number of the last step that is done
    Duration at;
  };
  void add(std::int64_t number, Duration at, Duration time);

  std::optional<Known> known_;
  std::vector<Point> points_;
  std::uint64_t steps_per_point_ = 1;
};

/// Which step of a start of the workers is safe, from the checkpoints that its ranks say are done.
/// Where only rank 0 says so, it speaks for all. Where several do, each may have saved its part: a
/// step is safe once all of them have it. Another rank alone may have saved anything. Pure.
class SafeStep {
 public:
  void start() { done_.clear(); }
  /// `rank` has saved `step`; the safe one, if there is one.
  std::optional<std::int64_t> done(std::int64_t rank, std::int64_t step);

 private:
  static constexpr std::size_t kMost = 65'536;  // ranks
  std::map<std::int64_t, std::int64_t> done_;
};

/// When a job spent what, and how long its steps took.
struct History {
  std::vector<Timeline::Span> spans;
  std::vector<StepSeries::Point> steps;
};

/// Keeps the ledger of one start of the job on one node, from what its agent does and its workers
/// report: live in the agent, and again from a journal. Pure. What ran since the last checkpoint is
/// lost whenever the workers do not come to their end, whatever the cause: another node or a signal
/// as much as a worker of this node. Facts come in the order in which they happened.
class JobAccount {
 public:
  /// `several_nodes`: waiting for the first round is waiting for others, not start-up.
  JobAccount(TimePoint job_start, bool several_nodes, TimePoint now);

  void phase(NodePhase phase, TimePoint now);
  /// The order to stop and join again has come; why, for people. `failure`: not because a node came
  /// or left.
  void restarting(std::string cause, bool failure, TimePoint now);
  /// A worker of this node failed, which had ended that long before the group was stopped, so long
  /// after its error; none if it did not tell when that was.
  void noticed_after(Duration time, std::optional<Duration> ending, std::string what);
  /// No worker of the job has made progress for `standing`.
  void hang(Duration standing, TimePoint now) { ledger_.hang(standing, now); }
  /// The group has gone; `failed`: a worker of it did not succeed.
  void stopped(bool failed, TimePoint now);
  /// `ending`: its name, as agents write it.
  void ended(bool succeeded, TimePoint now, std::string_view ending = "stopped");
  /// Agent or machine died at `now`, and could say nothing.
  void died(TimePoint now);
  /// The agent has gone. What follows until submitted_again() is Queued.
  void left(TimePoint now);
  /// The job starts again at `now`, say by a requeue.
  void submitted_again(TimePoint now);

  /// A rank of this start has connected to the workers' store: what it did until then was
  /// preparation, such as imports. From then on it was initialization once all have, or there is a
  /// step; where neither comes, say because a part of the ranks uses the store, it is running. A
  /// recorder that tells the initialization itself knows better, and what lies before is
  /// preparation.
  void joined(bool all, TimePoint now);
  /// `watched`: see Ledger::step().
  void step(std::int64_t number, TimePoint now, bool watched = false);
  /// `rank` says that its checkpoint of step `number` is done (-1: of everything so far; -2:
  /// saved, or before the first step loaded, and it cannot tell of which step).
  void checkpoint(std::int64_t rank, std::int64_t number, TimePoint now);
  /// From now on the worker of rank 0 does what it calls `name`, until it says another one or there
  /// is a step.
  void entered(std::string_view name, TimePoint now);
  /// So many ranks will start.
  void world(std::int64_t ranks) { ledger_.world(ranks); }
  /// What the recorder of rank 0's worker says of `at`; `name` of a custom event or a wait. A phase
  /// lasts until its end or the next step; a step until its end, the next step or that of the job.
  void recorded(const MeasurementEntry& entry, std::string_view name, TimePoint at);
  Ledger::Summary summary(TimePoint now) const { return ledger_.summary(now); }
  /// Keeps the history, too. To be called before any fact.
  void keep_history();
  /// Empty where it is not kept.
  History history(TimePoint now) const;
  const RestartLog& restarts() const { return restarts_; }
  std::vector<WorkersStart> starts(TimePoint now) const {
    return starts_.starts(now, summary(now).of(Bucket::Productive));
  }

 private:
  /// A phase of the workers that has begun.
  struct Open {
    Bucket bucket = Bucket::Running;
    std::string name;
    bool operator==(const Open&) const = default;
  };
  void stopping(TimePoint now);
  bool is_late(const MeasurementEntry& entry, TimePoint at) const;
  void begin_step(std::int64_t number, TimePoint at);
  void end_step(TimePoint at);
  Duration take_job_end(Bucket to, TimePoint at);
  void end_phase(TimePoint at);
  void forget_phases();
  void show(TimePoint at);
  void end_joining(TimePoint now);
  void end_work(TimePoint now);
  void lose_uncovered(Bucket next, TimePoint now, std::optional<Duration> ending = std::nullopt);

  const TimePoint job_start_;
  Ledger ledger_;
  RestartLog restarts_;
  StartLog starts_;
  bool several_nodes_;
  NodePhase phase_ = NodePhase::Joining;
  bool ran_ = false, restarting_ = false;
  bool gone_ = true;  // no group exists
  enum class Joining { None, Some, Over };
  Joining joining_ = Joining::None;  // how many ranks have connected to the store
  std::vector<Open> open_;           // the innermost last
  Open doing_;                       // what the worker says, beside them
  SafeStep safe_;
  std::optional<std::int64_t> step_;  // that has begun, as far as recorders tell
  // What Preparation held when a recorder told the end of the job: that step ended, or broke off.
  std::optional<Duration> job_end_;
  // How long the workers of this start took to end; none: unknown, because no error
  // file says when the error was. And of that, before the agent noticed.
  std::optional<Duration> ending_ = Duration::zero();
  Duration unnoticed_{};
  bool noticed_ = false;                     // a worker of this node failed
  TimePoint stepped_at_ = TimePoint::min();  // the end of the last step
  std::optional<StepSeries> steps_;          // if the history is kept
  std::optional<TimePoint> stopping_since_;  // as long as it is not known what comes after
};

}  // namespace elastrun::goodput
