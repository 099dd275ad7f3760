// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/last_visitors.hpp"
#include "agent/files/last_writes.hpp"
#include "agent/files/log_folders.hpp"
#include "agent/files/push_gate.hpp"
#include "agent/hang/expiration_timers.hpp"
#include "agent/hang/hang_response.hpp"
#include "agent/loop/agent.hpp"
#include "agent/loop/shared_pages.hpp"
#include "agent/loop/start_failure.hpp"
#include "agent/loop/worker_channel.hpp"
#include "agent/loop/worker_plans.hpp"
#include "agent/telemetry/elastic_records.hpp"
#include "agent/telemetry/job_records.hpp"
#include "agent/telemetry/run_goodput.hpp"
#include "agent/telemetry/run_metrics.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "agent/web/web_services.hpp"
#include "files/blocking_calls.hpp"
#include "launcher/binding.hpp"
#include "launcher/rendezvous_setup.hpp"
#include "launcher/run_registration.hpp"
#include "launcher/signal_forwarder.hpp"
#include "launcher/status_view.hpp"
#include "launcher/torchrun_log.hpp"
#include "logs/agent_log.hpp"
#include "logs/console.hpp"
#include "process/containment.hpp"
#include "process/descriptor_limit.hpp"
#include "process/guardian.hpp"
#include "process/posix_launcher.hpp"
#include "process/signals.hpp"
#include "spec/job_spec.hpp"
#include "system/oom_kills.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

namespace elastrun::agent {

/// The run of one job on this node with everything it takes, each part of which borrows those
/// above it. The programs and LocalElasticAgent share it; one at a time in a process, because it
/// takes signals, children and console for itself.
class JobRun {
 public:
  /// Makes them all; starts nothing. Fails with Usage, Io, Store or Rendezvous.
  static Started<std::unique_ptr<JobRun>> make(const spec::JobSpec& spec, guardian::Agent& guardian,
                                               OwnRendezvous own = {});

  /// Runs the job to its end, and removes what was only temporary.
  JobResult run();
  /// Signals that come from now on change nothing any more: for a program that only has to say how
  /// the job ended, and with which exit code.
  void ignore_signals();
  logs::Console& console() { return console_; }
  /// The thread for files that may be on a file system that does not answer.
  files::BlockingCalls& files() { return files_; }
  /// The one for what somebody wants to have wherever the logs are.
  files::BlockingCalls& reports() { return reports_; }
  /// The one for the error that is handed on, which a program that started us waits for.
  files::BlockingCalls& errors() { return errors_; }
  /// After run(): what the sinks of --metrics made of what they were given. Waits for them, for two
  /// seconds at most, so it comes after the verdict.
  std::vector<exporter::SinkAccount> end_metrics() {
    return metrics_ ? metrics_->end() : std::vector<exporter::SinkAccount>();
  }
  /// After run(), and after everything that is written because of its result: waits, as LastWrites
  /// does, until files and console have it; then, as LastVisitors does, for workers of other nodes.
  void finish();
  /// Where the run's records come from: for sinks of the caller's own, before run().
  telemetry::Pipeline& pipeline() { return pipeline_; }
  /// Whether the directory of the run is one that nobody has named: people must be told of it.
  bool is_temporary() const { return layout_.is_temporary(); }

 private:
  JobRun(const spec::JobSpec& spec, guardian::Agent& guardian, logs::Layout layout);
  Started<void> connect(OwnRendezvous own);
  void add_observers();
  RunRegistration::Facts registration_facts() const;
  HangResponse::Parts hang_parts();
  void open_timers();
  Status open_web();
  void end_timers(JobResult& result);
  Status open_records();
  void signalled(const process::SignalEvent& event);
  void forward(int signal);
  void watch();
  std::string channel_path();
  void heard(workers::Channel::Sender from, workers::Message message);
  process::KillResult sweep(Duration limit);
  void end_all(const JobResult& result);
  std::string settle(bool succeeded);
  WorkerPlans::Parts plan_parts();
  bool keeps_records() const;
  bool files_are_near() const;
  Agent::Parts agent_parts();

  const spec::JobSpec& spec_;
  guardian::Agent& guardian_;
  process::DescriptorLimit descriptors_;
  boost::asio::io_context loop_{1};
  std::unique_ptr<Clock> clock_;
  TimePoint started_;
  // Each a thread of its own, if it is needed: a file that does not answer holds up its own kind
  // only.
  files::BlockingCalls files_, reports_, errors_, diagnostics_, syncs_{loop_.get_executor()},
      folder_calls_{loop_.get_executor()};
  std::optional<logs::AgentLog> agent_log_;
  logs::Console console_;
  logs::Layout layout_;
  logs::StatusLine status_line_;
  logs::StreamFactory streams_;
  std::unique_ptr<process::PosixLauncher> launcher_;
  process::Containment containment_;
  bool alone_ = false;      // no other node can take part
  bool survivors_ = false;  // after all the time that SIGKILL may take
  telemetry::Pipeline pipeline_;
  WorkerChannel channel_;
  SharedPages pages_{spec_};
  rendezvous::Node self_;
  std::unique_ptr<rendezvous::Session> session_;
  std::unique_ptr<RoundStore> store_;
  system::OomKills oom_kills_;
  JobRecords job_records_;
  WorkerRecords worker_records_{pipeline_, spec_};
  std::unique_ptr<RunMetrics> metrics_;  // null: nobody has asked for any
  RunGoodput goodput_;
  StatusView status_;
  TorchrunLog log_;
  Binding binding_;
  RunRegistration registration_;
  std::unique_ptr<ElasticRecords> records_;
  std::unique_ptr<WebServices> web_;  // null: nobody has asked for any
  Observers observers_;
  HangResponse hang_response_;
  std::unique_ptr<ExpirationTimers> timers_;
  std::unique_ptr<WorkerPlans> plans_;
  LogFolders folders_;
  PushGate gate_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<process::SignalSource> signals_, resizes_;
  std::unique_ptr<SignalForwarder> forwarder_;
  process::Insistence insistence_;
  std::unique_ptr<process::DeathWatch> guardian_watch_;
  LastWrites last_writes_;
  LastVisitors last_visitors_;
  TimePoint store_needed_until_;
};

}  // namespace elastrun::agent
