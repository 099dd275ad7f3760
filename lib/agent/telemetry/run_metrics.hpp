// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/thread.hpp"
#include "export/json_lines.hpp"
#include "export/metrics_sink.hpp"
#include "files/blocking_calls.hpp"
#include "process/posix_launcher.hpp"
#include "spec/job_spec.hpp"
#include "system/machine.hpp"
#include "telemetry/registry.hpp"
#include "telemetry/route.hpp"
#include "workers/group.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// What the metrics of a run take in its agent: the instruments of this process, the windows that
/// end in time, series of what workers report, and the sinks of --metrics. Made only where
/// --metrics or --http asks for it; a run without one has no timer, no thread and no wake-up for
/// telemetry. One that has it wakes up after something was recorded, and at each interval where a
/// sink pulls series that come from a source (add_source).
///
/// Events do not come by here: their origin emits them into the pipeline of the run, which has
/// other routes, too (the journal), and builds none without a listener. On the loop only.
class TelemetryHost {
 public:
  /// Whether the job asks for one.
  static bool is_wanted(const spec::JobSpec& spec) { return !spec.metrics.empty() || spec.http; }

  /// Borrows all. `interval`: how often at most sinks pull.
  TelemetryHost(Clock& clock, telemetry::Pipeline& pipeline,
                telemetry::Registry& registry = telemetry::process_registry(),
                Duration interval = std::chrono::seconds(10))
      : clock_(clock), pipeline_(pipeline), registry_(registry), interval_(interval) {}
  ~TelemetryHost() {
    // The pipeline outlives this object, and would go on to call its sinks.
    for (const auto route : routes_) pipeline_.unroute(route);
    if (takes_samples_) registry_.forget_samples();
  }
  TelemetryHost(const TelemetryHost&) = delete;
  TelemetryHost& operator=(const TelemetryHost&) = delete;

  /// A sink that gets the records and series that fit one of `selectors`. `By`: whether the user
  /// has selected them, or they are what such a sink gets unless he does.
  enum class By { Default, User };
  void add(std::shared_ptr<exporter::MetricsSink> sink, std::vector<telemetry::Selector> selectors,
           By by = By::Default);

  /// Keeps samples of the pipeline as series from now on, for a puller.
  void take_samples();
  /// Whether a sink is told of windows.
  bool tells() const {
    return std::ranges::any_of(sinks_, [](const auto& sink) { return sink->is_told(); });
  }
  /// Something was added to an instrument of the registry: its window is closed in time, if
  /// anybody is told of windows, and sinks that pull do so soon. A series that is not announced
  /// appears with the next one that is. Costs next to nothing until that has happened.
  void recorded();

  /// Before the sinks: more series, which a source gathers when it is time. `gather` gives them to
  /// its argument once, later; their names begin with one of `names`. Sinks that pull then do so at
  /// every interval from the first time on, whether or not something was recorded. Sinks that are
  /// told hear of those that their user has selected, as samples, at the same times: without a
  /// route so many series would say too little.
  using TakePoints = std::function<void(std::vector<telemetry::Point>)>;
  void add_source(std::function<void(TakePoints)> gather, std::vector<std::string> names) {
    gather_ = std::move(gather);
    gathered_names_ = std::move(names);
  }

  /// The workers of this node are others from now on, and have ranks from `first` on: what the
  /// gauges of those before have come to holds no more, nor do the counters of ranks that are not
  /// here any more. Counters of the others go on.
  void round_began(int first, int count);

  telemetry::Registry& registry() { return registry_; }
  /// That of the run, for routes to sinks of one's own.
  telemetry::Pipeline& pipeline() { return pipeline_; }

  /// Nothing is recorded any more: ends open windows, has sinks pull a last time and deliver what
  /// they have. `done` runs once when all have, maybe inside this call.
  void finish(std::function<void()> done);
  /// What became of what each sink was given.
  std::vector<exporter::SinkAccount> accounts() const {
    std::vector<exporter::SinkAccount> all;
    for (const auto& sink : sinks_) all.push_back(sink->account());
    return all;
  }

 private:
  /// With what it gets.
  using Selected =
      std::pair<std::shared_ptr<exporter::MetricsSink>, std::vector<telemetry::Selector>>;
  void pull();
  void tell_gathered();
  void gather_and_pull();
  void arm_pull();
  void tell_windows(telemetry::Registry::Closing closing) {
    for (auto& record : registry_.close_windows(closing)) pipeline_.emit(std::move(record));
  }
  void take_sample(const telemetry::Record& sample) {
    const auto why = registry_.take(sample);
    if (why.empty()) return recorded();
    if (std::exchange(said_refused_, true)) return;
    log::warning("metrics",
                 "Metric '{}' of '{}' becomes no series, because {}; it and others are counted in "
                 "elastrun.telemetry.dropped as those of the sink 'series'",
                 printable(sample.name), printable(sample.scope), why);
  }
  class Samples;

  Clock& clock_;
  telemetry::Pipeline& pipeline_;
  telemetry::Registry& registry_;
  const Duration interval_;
  std::vector<telemetry::RouteId> routes_;
  std::vector<std::shared_ptr<exporter::MetricsSink>> sinks_;
  std::vector<Selected> pullers_, listeners_;  // these hear of what is gathered
  std::unique_ptr<Alarm> window_end_, next_pull_;
  bool window_open_ = false, pull_due_ = false, pulled_ = false, finished_ = false;
  bool takes_samples_ = false, has_begun_ = false;  // a round
  bool said_refused_ = false;
  std::function<void(TakePoints)> gather_;
  std::vector<std::string> gathered_names_;
  std::vector<telemetry::Point> gathered_;
  Lifetime lifetime_;
};

/// Looks at the machine and the workers of this node on request, on a separate thread: a
/// GPU that has fallen off the bus may not answer at all, and what else there is to tell must not
/// wait for it.
class MachineWatch {
 public:
  using Then = std::function<void(const system::MachineSample&)>;
  /// How long a caller waits for a look.
  static constexpr Duration kTimeLimit = std::chrono::seconds(1);

  explicit MachineWatch(RunContext& run)
      : run_(run),
        begun_(run.clock.now()),
        calls_(run.loop.get_executor(), files::BlockingCalls::WithoutThread::Refuse),
        limit_(run.clock.make_alarm()) {}
  // The driver's library is closed by a thread: that, too, may wait for a GPU without end.
  ~MachineWatch() {
    if (!detach_thread([machine = std::move(machine_)] {})) {
      log::debug("machine", "the GPU driver is closed without a thread");
    }
  }
  MachineWatch(const MachineWatch&) = delete;
  MachineWatch& operator=(const MachineWatch&) = delete;

  /// `then` runs once, never inside this call. One look at a time; all who ask meanwhile get the
  /// same. Who has waited long enough gets the last one, while the thread goes on waiting.
  void look(Then then);
  /// Hears each new sample, for whichever part it was taken.
  void on_sample(Then hear) { hear_ = std::move(hear); }
  /// A sample as series; totals count from the time that this was made.
  std::vector<telemetry::Point> points_of(const system::MachineSample& sample) const {
    return system::points_of(sample, begun_);
  }

 private:
  std::vector<system::WatchedWorker> watched() const {
    std::vector<system::WatchedWorker> watched;
    const auto* const group = run_.workers();
    if (group == nullptr) return watched;
    for (const auto& worker : *group) {
      if (!worker.exit) watched.push_back({worker.rank, worker.local_rank, worker.pid});
    }
    return watched;
  }
  void answer() {
    limit_->disarm();
    for (const auto& one : std::exchange(waiting_, {})) one(sample_);
  }

  RunContext& run_;
  const TimePoint begun_;
  files::BlockingCalls calls_;
  std::shared_ptr<system::Machine> machine_ = std::make_shared<system::Machine>();  // with a call
  std::vector<Then> waiting_;  // for the same look
  Then hear_;
  system::MachineSample sample_;
  std::unique_ptr<Alarm> limit_;
  bool looking_ = false;
  Lifetime lifetime_;
};

/// The telemetry host of a run with the sinks that --metrics names, a thread for their files and a
/// launcher for their programs, and what the agent measures of itself and of the machine. What the
/// parts of a run count anyway are instruments, too, which are asked at each collection and cost
/// nothing before that: elastrun-telemetry(7) lists them.
class RunMetrics {
 public:
  /// How long the end of a run waits for sinks. The verdict comes before that.
  static constexpr Duration kTimeLimit = std::chrono::seconds(2);

  /// Borrows all; to go before what is observed.
  RunMetrics(RunContext& run, telemetry::Pipeline& pipeline, const WorkerRecords& records);
  /// Adds the sinks of --metrics. Fails with Usage (a wrong option) or Io, and names the sink. May
  /// wait five minutes for a file system.
  Started<void> add_sinks();

  /// Programs of sinks, which outlive a group of workers and are not among its leftovers.
  std::vector<pid_t> programs() const { return programs_.children(); }
  TelemetryHost& host() { return host_; }
  MachineWatch& machine() { return machine_; }
  /// Records that the journal loses are counted as those of sinks.
  void watch_journal(std::shared_ptr<const exporter::JsonLines> journal) {
    journal_ = std::move(journal);
  }
  /// Hears what the agent does.
  Observer& observer() { return *own_; }

  /// After the run: runs the loop until all is delivered, kTimeLimit at most; tells what was lost.
  /// What became of what each sink was given, also when called again.
  const std::vector<exporter::SinkAccount>& end();
  bool ending() const { return ending_; }
  /// A signal cuts that wait short.
  void hurry() { run_.loop.stop(); }

 private:
  void choose(const std::string& pattern, const std::vector<std::string>& names);
  void observe();

  RunContext& run_;
  const WorkerRecords& records_;
  files::BlockingCalls files_;
  process::PosixLauncher programs_;
  TelemetryHost host_;
  const std::unique_ptr<Observer> own_;
  MachineWatch machine_;
  std::shared_ptr<const exporter::JsonLines> journal_;  // null: there is none
  bool ending_ = false, ended_ = false;
  std::vector<exporter::SinkAccount> accounts_;
  telemetry::Observations observations_{host_.registry(), kAgentScope};
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
