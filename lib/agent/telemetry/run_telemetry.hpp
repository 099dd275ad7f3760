// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/goodput/goodput_account.hpp"
#include "agent/telemetry/elastic_records.hpp"
#include "agent/telemetry/goodput_monitor.hpp"
#include "agent/telemetry/job_records.hpp"
#include "agent/telemetry/node_series.hpp"
#include "agent/telemetry/run_metrics.hpp"
#include "agent/telemetry/worker_records.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace elastrun::agent {

/// All that a run tells of itself: its pipeline of records with those who write into it, the sinks
/// of --metrics, and the account of where its time goes with what watches that account.
class RunTelemetry {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    TimePoint job_start;
    const spec::JobSpec& spec;
    logs::Console& console;
    process::Containment& containment;  // is to leave programs of sinks alone
    const logs::StreamFactory& streams;
    const WorkerChannel& channel;
    const RoundStore& store;
    rendezvous::Session& session;
    telemetry::events::AgentFacts agent;
    MachineWatch::FindGroup group;
    std::function<bool()> has_fifo;  // as ElasticRecords'
  };
  /// Borrows all. Fails with Usage for an event handler or a sink that does not exist, and as
  /// MetricsSinks::make.
  static Started<std::unique_ptr<RunTelemetry>> make(Parts parts);

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

  void begin() { job_records_.begin(parts_.clock.now() - parts_.job_start); }
  /// After the run: where the time went.
  void sum_up(JobResult& result);
  /// After that: what became of what the sinks were given. Waits for them, kTimeLimit at most.
  std::vector<exporter::SinkAccount> end_metrics();
  bool ending_metrics() const { return metrics_ && metrics_->ending(); }

 private:
  explicit RunTelemetry(Parts parts);
  Status attach_event_handler();
  Started<void> open_sinks();
  void watch_goodput();

  const Parts parts_;
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
