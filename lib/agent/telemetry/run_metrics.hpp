// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/round/round_store.hpp"
#include "agent/round/start_failure.hpp"
#include "agent/round/worker_channel.hpp"
#include "agent/telemetry/machine_watch.hpp"
#include "agent/telemetry/metrics_sinks.hpp"
#include "agent/telemetry/telemetry_host.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "core/lifetime.hpp"
#include "export/json_lines.hpp"
#include "logs/stream_factory.hpp"
#include "process/containment.hpp"
#include "process/posix_launcher.hpp"
#include "telemetry/instruments.hpp"
#include "telemetry/registry.hpp"

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
  using Observer::on;
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
  const telemetry::Counter<std::int64_t> restarts_, exits_, runs_;
};

/// What the parts of a run count anyway, as instruments of the scope elastrun.agent that are asked
/// at each collection: elastrun-telemetry(7) lists them. They cost nothing before that, and go
/// with this object, which the parts must outlive.
class RunObservations {
 public:
  struct Parts {
    const logs::StreamFactory& streams;
    const WorkerChannel& channel;
    const WorkerRecords& records;
    const RoundStore& store;
  };
  /// Borrows all. The registry is that of the host.
  RunObservations(const Parts& parts, TelemetryHost& host);
  /// The journal counts among the sinks from now on.
  void watch_journal(std::shared_ptr<const exporter::JsonLines> journal) {
    journal_ = std::move(journal);
  }

 private:
  void observe(telemetry::Kind kind, telemetry::Spec spec, telemetry::Registry::Observer observer);
  void observe_store();
  void observe_output();
  void observe_channel();
  void observe_telemetry();

  const Parts parts_;
  TelemetryHost& host_;
  std::shared_ptr<const exporter::JsonLines> journal_;  // null: there is none
  std::vector<telemetry::Observation> all_;
};

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
  /// A signal cuts that wait short.
  void hurry() { loop_.stop(); }

 private:
  RunMetrics(const spec::JobSpec& spec, const Parts& parts);
  void override_views(const std::string& pattern, const std::vector<std::string>& names);

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
