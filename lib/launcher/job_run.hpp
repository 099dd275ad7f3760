// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/run_files.hpp"
#include "agent/hang/hang_services.hpp"
#include "agent/loop/agent.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/loop/saving.hpp"
#include "agent/telemetry/run_telemetry.hpp"
#include "agent/web/web_services.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "files/blocking_calls.hpp"
#include "launcher/rendezvous_setup.hpp"
#include "launcher/restarts.hpp"
#include "launcher/run_signals.hpp"
#include "launcher/status/run_status.hpp"
#include "launcher/workers/binding.hpp"
#include "launcher/workers/fork_serving.hpp"
#include "logs/agent_log.hpp"
#include "process/spawn.hpp"
#include "spec/job_spec.hpp"
#include "system/machine.hpp"
#include "workers/channel.hpp"
#include "workers/environment.hpp"
#include "workers/shared_page.hpp"
#include "workers/worker.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// The ground on which a run stands: made before all its parts, and ends after them.
struct RunGround {
  explicit RunGround(guardian::Agent& guardian);

  process::DescriptorLimit descriptors_;
  boost::asio::io_context loop_{1};
  std::unique_ptr<Clock> clock_;
  files::Lanes lanes_;
  std::optional<logs::AgentLog> agent_log_;
  logs::Console console_;
  process::PosixLauncher launcher_;
  process::Containment containment_;
};

/// The run of one job on this node with everything it takes, each part of which borrows those
/// above it. The programs and LocalElasticAgent share it; one at a time in a process, because it
/// takes signals, children and console for itself.
class JobRun final : private RunGround, public RunContext {
 public:
  /// Makes them all; starts nothing. Fails with Usage, Io, Store or Rendezvous.
  static Started<std::unique_ptr<JobRun>> make(const spec::JobSpec& spec, guardian::Agent& guardian,
                                               OwnRendezvous own = {});

  /// Before run(), of which the handlers of this process, if it has any by now, then hear, too:
  /// those of telemetry::metrics::configure, and its routes.
  void tell_process() { telemetry_->tell_process(); }
  /// Before run(), which then ends as by SIGTERM when one of these can be read from.
  void end_with(std::vector<int> descriptors) { ends_with_ = std::move(descriptors); }
  /// Runs the job to its end, and removes what was only temporary.
  JobResult run();
  /// Signals that come from now on change nothing any more: for a program that only has to say how
  /// the job ended, and with which exit code.
  void ignore_signals() {
    if (signals_) signals_->ignore_rest();
  }
  logs::Console& console() { return console_; }
  /// The threads for files that may be on a file system that does not answer.
  files::BlockingCalls& lane(files::Lane lane) { return lanes_[lane]; }
  /// After run(): what the sinks of --metrics made of what they were given. Waits for them, for two
  /// seconds at most, so it comes after the verdict.
  std::vector<exporter::SinkAccount> end_metrics() { return telemetry_->end_metrics(); }
  /// After run(), and after everything that is written because of its result: waits, as LastWrites
  /// does, until files and console have it; then, as StoreDrain does, for workers of other nodes.
  void finish();
  /// Where the run's records come from: for sinks of the caller's own, before run().
  telemetry::Pipeline& pipeline() { return telemetry_->pipeline(); }
  /// Whether the directory of the run was not named by the user, who must be told of it.
  bool is_temporary() const { return layout_.is_temporary(); }

 private:
  JobRun(const spec::JobSpec& its_spec, guardian::Agent& its_guardian, logs::Layout layout);
  // The steps of make(), in order.
  Status meet(OwnRendezvous own);
  Status open_web();
  void make_agent();
  Status open_records();

  void post(Fact fact) override { agent_->post(std::move(fact)); }
  const workers::Worker* worker_of(pid_t process) const override {
    return agent_->worker_of(process);
  }
  const std::vector<workers::Worker>* workers() const override {
    return agent_ ? agent_->workers() : nullptr;
  }
  Result<std::vector<workers::WorkerPlan>> plan(const rendezvous::Round& round) override;
  void pushed(rendezvous::Push push) override;
  void check(RestartCheck::Then then) override {
    check_ ? check_->look(std::move(then)) : then({});
  }
  void explain(workers::Failure& failure) override;
  workers::ErrorFileReader::Read error_file_reader() override {
    return workers::reader_by(lanes[files::Lane::Diagnostics]);
  }
  std::uint64_t written() const override { return system::bytes_written(containment_.processes()); }
  void catch_up() override { channel_.catch_up(); }
  void release() override { channel_.release(); }
  TimePoint activity() const override;
  std::string lasting_report() const override;
  void save_takes(Duration time) override {
    if (sources_) sources_->save_takes(time);
  }

  // Brings each packet of the workers' channel to the consumer of its type.
  void heard(workers::Channel::Sender from, workers::Message message);
  void heard(pid_t sender, const workers::Worker& worker, workers::Message message);
  void refused(pid_t worker) {
    if (const auto* one = agent_->worker_of(worker)) telemetry_->worker_records().refused(*one, 1);
  }
  // In the order of local ranks. Fails with Io (directories, descriptors) or Usage (devices, CPUs).
  Result<std::vector<workers::WorkerPlan>> make_plans(const rendezvous::Round& round);
  Result<workers::WorkerPlan> make_one(const workers::Placement& place, int local_rank,
                                       const std::string& directory, const std::string& channel);
  logs::StreamSettings stream_settings(const workers::Placement& place, int local_rank,
                                       const std::string& directory) const;
  void end_all(const JobResult& result);
  bool keeps_records() const;
  bool files_are_near() const;

  const TimePoint started_;
  logs::Layout layout_;
  RunStatus status_;
  logs::StreamFactory streams_;
  workers::Channel channel_;
  workers::SharedPages pages_;
  system::OomKills oom_kills_;
  rendezvous::Node self_;
  RendezvousSetup place_;
  std::optional<Saving> saving_;
  std::optional<HangServices> hang_;
  std::unique_ptr<RunTelemetry> telemetry_;
  Binding binding_;
  std::unique_ptr<ForkServing> forks_;  // null: all workers are started by exec
  std::unique_ptr<WebServices> web_;    // null: none asked for
  RestartMemoryFile memory_;
  std::optional<RestartCheck> check_;  // none: the policy does not ask for it
  std::optional<PreemptionSources> sources_;
  Observers observers_;
  std::optional<RunFiles> files_;
  std::optional<Agent> agent_;
  std::optional<RunSignals> signals_;
  std::vector<int> ends_with_;
  TimePoint store_needed_until_;
};

}  // namespace elastrun::agent
