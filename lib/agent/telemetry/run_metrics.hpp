// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/start_failure.hpp"
#include "agent/telemetry/agent_metrics.hpp"
#include "agent/telemetry/machine_watch.hpp"
#include "agent/telemetry/metrics_sinks.hpp"
#include "agent/telemetry/run_observations.hpp"
#include "agent/telemetry/telemetry_host.hpp"
#include "core/lifetime.hpp"
#include "process/containment.hpp"
#include "process/posix_launcher.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// The telemetry host of a run with the sinks that --metrics names, a thread for their files and a
/// launcher for their programs, and what the agent measures of itself and of the machine.
class RunMetrics {
 public:
  /// How long the end of a run waits for sinks. The verdict comes before that.
  static constexpr Duration kTimeLimit = std::chrono::seconds(2);

  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    telemetry::Pipeline& pipeline;
    logs::Console& console;
    process::Containment& containment;  // is to leave the programs of sinks alone
    // What is observed
    const logs::StreamFactory& streams;
    const WorkerChannel& channel;
    const WorkerRecords& records;
    const RoundStore& store;
    MachineWatch::FindGroup group;
  };
  /// Borrows all; to go before what is observed. Null for a job that asks for none. Fails as
  /// MetricsSinks::make, whose Usage is a wrong option.
  static Started<std::unique_ptr<RunMetrics>> make(const spec::JobSpec& spec, const Parts& parts);

  TelemetryHost& host() { return host_; }
  MachineWatch& machine() { return machine_; }
  /// Records that the journal loses are counted as those of sinks.
  void watch_journal(std::shared_ptr<const exporter::JsonLines> journal) {
    observations_.watch_journal(std::move(journal));
  }
  /// Hears what the agent does.
  Observer& observer() { return own_; }

  /// After the run: runs the loop until all is delivered, kTimeLimit at most; tells what was lost.
  /// What became of what each sink was given, also when called again.
  const std::vector<exporter::SinkAccount>& end();
  bool ending() const { return ending_; }
  /// Somebody does not want to wait for that.
  void hurry() { loop_.stop(); }

 private:
  RunMetrics(const spec::JobSpec& spec, const Parts& parts);

  boost::asio::io_context& loop_;
  Clock& clock_;
  files::BlockingCalls files_;
  const std::unique_ptr<process::PosixLauncher> programs_;
  TelemetryHost host_;
  AgentMetrics own_;
  MachineWatch machine_;
  RunObservations observations_;
  bool ending_ = false, ended_ = false;
  std::vector<exporter::SinkAccount> accounts_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
