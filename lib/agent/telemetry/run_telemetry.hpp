// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/telemetry/goodput_account.hpp"
#include "agent/telemetry/run_metrics.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "telemetry/events.hpp"
#include "telemetry/route.hpp"

#include <memory>
#include <vector>

namespace elastrun::agent {

class JobRecords;

/// All that a run tells of itself: its pipeline of records with those who write into it, the sinks
/// of --metrics, and the account of where its time goes with what watches that account.
class RunTelemetry {
 public:
  /// Borrows all. Fails with Usage for an event handler or a sink that does not exist, and as
  /// RunMetrics::add_sinks.
  /// `facts`: of this agent, in torch's events. `has_fifo`: there is one for torch's timers; torch
  /// tells of its watchdog only where it runs.
  static Started<std::unique_ptr<RunTelemetry>> make(RunContext& run,
                                                     const workers::SharedPages& pages,
                                                     telemetry::events::AgentFacts facts,
                                                     bool has_fifo);
  ~RunTelemetry();
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
  void write_journal(const std::shared_ptr<exporter::JsonLines>& journal) {
    pipeline_.route({}, journal);
    if (metrics_) metrics_->watch_journal(journal);
  }
  /// For /status; null if nothing watches the account.
  json::value goodput_status() const { return account_.status(); }

  void begin();
  /// After the run: where the time went.
  void sum_up(JobResult& result);
  /// After that: what became of what the sinks were given. Waits for them, kTimeLimit at most.
  std::vector<exporter::SinkAccount> end_metrics() {
    return metrics_ ? metrics_->end() : std::vector<exporter::SinkAccount>();
  }
  bool ending_metrics() const { return metrics_ && metrics_->ending(); }

 private:
  RunTelemetry(RunContext& run, const workers::SharedPages& pages,
               telemetry::events::AgentFacts facts, bool has_fifo);

  RunContext& run_;
  telemetry::Pipeline pipeline_;
  const std::unique_ptr<JobRecords> job_records_;
  WorkerRecords worker_records_;
  const std::unique_ptr<Observer> elastic_records_;
  const std::unique_ptr<RunMetrics> metrics_;  // null: none asked for
  GoodputAccount account_;
  const std::unique_ptr<Observer> nodes_;  // null likewise
};

}  // namespace elastrun::agent
