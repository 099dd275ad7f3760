// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/round/round_store.hpp"
#include "agent/telemetry/telemetry_host.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "export/json_lines.hpp"
#include "export/metrics_sink.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"
#include "logs/stream_factory.hpp"
#include "process/containment.hpp"
#include "process/launcher.hpp"
#include "process/posix_launcher.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/events.hpp"
#include "telemetry/registry.hpp"
#include "workers/channel.hpp"
#include "workers/shared_page.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// What the agent measures of itself: elastrun-telemetry(7) lists the instruments. Beside them it
/// tells the pipeline of each stretch of time that has ended (rendezvous, start, stop, the life of
/// a worker) as a span, for traces.
class AgentMetrics final : public Observer {
 public:
  static constexpr std::string_view kScope = kAgentScope;
  /// Borrows the host. `start`: of the job.
  AgentMetrics(TelemetryHost& host, TimePoint start, int max_restarts);

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen);
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::Stopped& seen);
  void on(const moment::Ended& seen);

 private:
  void span(std::string name, TimePoint end, Duration length,
            std::vector<telemetry::Attribute> attributes = {});
  telemetry::Spec spec(std::string name, std::string unit, std::string help,
                       std::vector<std::string> label_keys = {}) const;

  TelemetryHost& host_;
  const TimePoint start_;
  const int max_restarts_;
  std::optional<Phase> phase_;
  std::optional<TimePoint> restart_began_;
  std::optional<TimePoint> group_began_;
  bool has_started_ = false;
  int attempt_ = 0;  // of the workers that run, or ran last
  const telemetry::Histogram rendezvous_, starting_, stopping_, restarting_;
  const telemetry::Gauge startup_, restarts_left_, flakiness_, phases_;
  const telemetry::Counter restarts_, exits_, runs_;
};

/// The parts of a run that telemetry borrows.
struct RunParts {
  RunContext& run;
  TimePoint job_start;
  process::Containment& containment;  // is to leave programs of sinks alone
  const logs::StreamFactory& streams;
  const workers::Channel& channel;
  const workers::SharedPages& pages;
  const RoundStore& store;
  telemetry::events::AgentFacts agent;
  bool has_fifo = false;  // as ElasticRecords'
};

/// The telemetry host of a run with the sinks that --metrics names, a thread for their files and a
/// launcher for their programs, and what the agent measures of itself and of the machine. What the
/// parts of a run count anyway are instruments, too, which are asked at each collection and cost
/// nothing before that: elastrun-telemetry(7) lists them.
class RunMetrics {
 public:
  /// How long the end of a run waits for sinks. The verdict comes before that.
  static constexpr Duration kTimeLimit = std::chrono::seconds(2);

  /// Borrows all; to go before what is observed. Null for a job that asks for none. Fails with
  /// Usage (a wrong option) or Io, and names the sink. May wait five minutes for a file system.
  static Started<std::unique_ptr<RunMetrics>> make(const RunParts& parts,
                                                   telemetry::Pipeline& pipeline,
                                                   const WorkerRecords& records);

  TelemetryHost& host() { return host_; }
  MachineWatch& machine() { return machine_; }
  /// Records that the journal loses are counted as those of sinks.
  void watch_journal(std::shared_ptr<const exporter::JsonLines> journal) {
    journal_ = std::move(journal);
  }
  /// Hears what the agent does.
  Observer& observer() { return own_; }

  /// After the run: runs the loop until all is delivered, kTimeLimit at most; tells what was lost.
  /// What became of what each sink was given, also when called again.
  const std::vector<exporter::SinkAccount>& end();
  bool ending() const { return ending_; }
  /// A signal cuts that wait short.
  void hurry() { parts_.run.loop.stop(); }

 private:
  RunMetrics(const RunParts& parts, telemetry::Pipeline& pipeline, const WorkerRecords& records);
  void choose(const std::string& pattern, const std::vector<std::string>& names);

  void observe();

  const RunParts& parts_;
  const WorkerRecords& records_;
  files::BlockingCalls files_;
  process::PosixLauncher programs_;
  TelemetryHost host_;
  AgentMetrics own_;
  MachineWatch machine_;
  std::shared_ptr<const exporter::JsonLines> journal_;  // null: there is none
  bool ending_ = false, ended_ = false;
  std::vector<exporter::SinkAccount> accounts_;
  telemetry::Observations observations_{host_.registry(), kAgentScope};
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
