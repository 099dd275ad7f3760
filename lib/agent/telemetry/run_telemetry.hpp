// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/goodput/goodput_account.hpp"
#include "agent/loop/observer.hpp"
#include "agent/telemetry/goodput_monitor.hpp"
#include "agent/telemetry/run_metrics.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/events.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/registry.hpp"
#include "telemetry/route.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// Tells the pipeline what the agent does, as events of the scope "elastrun.agent": for the journal
/// and every other sink. elastrun-protocol(7) lists the names and attributes. Without a route
/// nothing is built.
class JobRecords final : public Observer {
 public:
  static constexpr std::string_view kScope = kAgentScope;

  /// Borrows both.
  JobRecords(telemetry::Pipeline& pipeline, const spec::JobSpec& job)
      : pipeline_(pipeline), job_(job) {}

  /// First of all: what the job is. `since_start`: so long ago its agent began.
  void begin(Duration since_start);
  void heard(const Moment& one) override {
    if (pipeline_.wants(kScope)) dispatch(one, *this);
  }
  void on(const moment::PhaseChanged& seen);
  void on(const moment::Progress& seen) { tell("rendezvous.progress", {{"text", seen.text}}); }
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::Joined& seen) {
    tell(seen.all ? "ranks.connected" : "ranks.connecting", {});
  }
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen) { tell_restart("restart", seen.order); }
  void on(const moment::RoleRestarting& seen) { tell_restart("role.restart", seen.order); }
  void on(const moment::Stopped& seen);
  void on(const TimerExpired& seen);
  void on(const TimerKilled& seen);
  void on(const HangSeen& seen);
  void on(const moment::Ended& seen);
  /// Last of all: where the time went.
  void summary(const goodput::Ledger::Summary& summary);

 private:
  using Attributes = std::vector<telemetry::Attribute>;
  void tell(std::string_view name, Attributes attributes) {
    pipeline_.event(std::string(kScope), std::string(name), std::move(attributes));
  }
  void tell_restart(std::string_view name, const rendezvous::Restart& order);

  telemetry::Pipeline& pipeline_;
  const spec::JobSpec& job_;
  TimePoint phase_since_;
};

/// Emits torchelastic's events and metrics (torchrun-parity 9 and 10) for what the agent does.
/// Costs next to nothing while no handler wants them.
class ElasticRecords final : public Observer {
 public:
  /// `has_fifo`: there is one for torch's timers; torch tells of its watchdog only where it runs.
  ElasticRecords(telemetry::Pipeline& pipeline, telemetry::events::AgentFacts facts,
                 const spec::JobSpec& job, bool has_fifo = false);

  /// From now on it looks at the workers that run every --monitor-interval, as torchrun does, for
  /// those who want each sample; others hear of what happened.
  void look_by(Clock& clock) { alarm_ = clock.make_alarm(); }

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen) {
    if (seen.phase == Phase::Joining) joining_since_ = seen.now;
  }
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::Stopped& seen);
  void on(const TimerExpired& seen) { watchdog("timer expired", seen.timer.get()); }
  void on(const TimerKilled& seen) { watchdog("kill worker process", seen.timer.get()); }
  void on(const moment::Ended& seen);

 private:
  void profile(std::string_view method, Duration took, bool success = true);
  void pass(std::string_view state, Duration took);
  std::pair<bool, Duration> look_at_workers() const;
  void wait_for_look();
  void look();
  void put_each(std::string name, telemetry::Value value);
  void watchdog(std::string_view event, const ExpiredTimer* timer = nullptr);
  void raised(const JobResult& result, Duration took);
  void end_of_workers(const JobResult& result, const std::vector<workers::Worker>& group);
  telemetry::events::WorkerFacts facts_of(const workers::Worker& worker) const;

  telemetry::Pipeline& pipeline_;
  telemetry::metrics::Metrics metrics_;
  telemetry::events::AgentFacts facts_;
  const spec::JobSpec& job_;
  const bool has_fifo_;
  int restarts_left_;
  const TimePoint start_;
  std::unique_ptr<Alarm> alarm_;  // of the next look
  std::vector<pid_t> running_;    // the workers that are looked at
  bool restarting_ = false;
  TimePoint restart_began_{};
  std::optional<TimePoint> joining_since_;
  Duration waited_{};  // for the round
  int role_rank_base_ = 0, role_world_size_ = 1;
};

/// The nodes of the job as series of the node that has rank 0: which are in the world, and which
/// of them have interrupted it. A fall of goodput can then be laid at the door of a machine.
class NodeSeries final : public Observer {
 public:
  /// Nodes are named by scripts and networks: others than the first ones are not told.
  static constexpr std::size_t kMost = 2000;
  explicit NodeSeries(telemetry::Registry& registry);

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::RoundReady& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::RoleRestarting& seen) { on(moment::Restarting{seen.order}); }

 private:
  using Report = telemetry::Registry::Report;
  bool here_ = false;
  std::map<std::string, std::string> addresses_;  // by the id in this world
  std::map<std::string, bool> up_;                // by address
  std::map<std::pair<std::string, std::string_view>, std::int64_t> interruptions_;  // and cause
  telemetry::Observations observations_;
};

/// All that a run tells of itself: its pipeline of records with those who write into it, the sinks
/// of --metrics, and the account of where its time goes with what watches that account.
class RunTelemetry {
 public:
  /// Borrows all. Fails with Usage for an event handler or a sink that does not exist, and as
  /// RunMetrics::make.
  static Started<std::unique_ptr<RunTelemetry>> make(RunParts parts);

  RunTelemetry(const RunTelemetry&) = delete;
  RunTelemetry& operator=(const RunTelemetry&) = delete;

  /// In the order in which they are to hear what the agent does.
  std::vector<Observer*> observers();
  telemetry::Pipeline& pipeline() { return pipeline_; }
  /// The handlers of this process, if it has any by now, hear every record, too.
  void tell_process();
  WorkerRecords& worker_records() { return worker_records_; }
  /// Null: no metrics asked for.
  RunMetrics* metrics() { return metrics_.get(); }
  /// Every record from now on.
  void write_journal(const std::shared_ptr<exporter::JsonLines>& journal);
  /// For /status; null if nothing watches the account.
  json::value goodput_status() const { return monitor_ ? monitor_->status() : nullptr; }

  void begin() { job_records_.begin(parts_.run.clock.now() - parts_.job_start); }
  /// After the run: where the time went.
  void sum_up(JobResult& result);
  /// After that: what became of what the sinks were given. Waits for them, kTimeLimit at most.
  std::vector<exporter::SinkAccount> end_metrics();
  bool ending_metrics() const { return metrics_ && metrics_->ending(); }

 private:
  explicit RunTelemetry(RunParts parts);
  void watch(std::unique_ptr<RunMetrics> metrics);

  const RunParts parts_;
  telemetry::Pipeline pipeline_;
  JobRecords job_records_;
  WorkerRecords worker_records_;
  ElasticRecords elastic_records_;
  std::unique_ptr<RunMetrics> metrics_;
  GoodputAccount account_;
  std::unique_ptr<GoodputMonitor> monitor_;
  std::unique_ptr<NodeSeries> nodes_;  // null: no metrics asked for
};

}  // namespace elastrun::agent
