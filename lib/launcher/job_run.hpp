// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/run_files.hpp"
#include "agent/hang/hang_watch.hpp"
#include "agent/loop/agent.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/telemetry/run_telemetry.hpp"
#include "agent/web/web_services.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "launcher/rendezvous_setup.hpp"
#include "launcher/restarts.hpp"
#include "launcher/status/run_status.hpp"
#include "logs/layout.hpp"
#include "process/containment.hpp"
#include "process/posix_launcher.hpp"
#include "process/spawn.hpp"
#include "spec/job_spec.hpp"
#include "system/machine.hpp"
#include "workers/channel.hpp"
#include "workers/diagnostics.hpp"
#include "workers/shared_page.hpp"

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// What asks a job to save and end besides signals and elastrunctl: a file that appears
/// (--preempt-file), and the end that Slurm has told for the job's allocation.
class PreemptionSources {
 public:
  /// The time to save in before an end that is known: twice what a save has taken, at least
  /// kLeast; before any save is known kUnknown. At most --preempt-timeout, or kMost without it, and
  /// half of the time that was left at the start.
  static constexpr Duration kLeast = std::chrono::seconds(10), kUnknown = std::chrono::seconds(60),
                            kMost = std::chrono::minutes(5);

  /// Does nothing for a job that has no preemption options. `end`: SLURM_JOB_END_TIME; empty: none.
  PreemptionSources(RunContext& run, const std::string& end);
  ~PreemptionSources() { lifetime_.end(); }

  /// A save has taken so long.
  void save_takes(Duration time);

 private:
  void watch_file();
  void await_event();
  void look();
  void arm();

  RunContext& run_;
  const std::string file_;
  const Duration timeout_;
  std::optional<TimePoint> end_;
  Duration most_ = kMost, margin_ = kUnknown;
  std::unique_ptr<Alarm> alarm_, again_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> events_;
  std::array<char, 4096> buffer_{};
  bool is_old_ = false;   // it was there before the job, and could not be removed
  bool is_gone_ = false;  // its folder
  Lifetime lifetime_;
};

/// Which CPUs each worker of this node may use (--numa-binding). The machine is looked at when the
/// first worker needs it, so jobs that are not bound pay nothing. After each start it reads back
/// what the kernel made of it, and warns where that differs.
class Binding final : public Observes<Binding> {
 public:
  /// Borrows the spec.
  explicit Binding(const spec::JobSpec& spec) : spec_(spec) {}

  /// Empty: not bound. Fails with Usage when not every worker can have such a share.
  Result<std::vector<int>> cpus(int local_rank);

  void on(const moment::Started& seen);

 private:
  const spec::JobSpec& spec_;
  std::optional<std::vector<std::vector<int>>> plan_;  // by local rank
};

class ForkServing;
class RunSignals;

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
  ~JobRun() override;

  /// Before run(), of which the handlers of this process, if it has any by now, then hear, too:
  /// those of telemetry::metrics::configure, and its routes.
  void tell_process() { telemetry_->tell_process(); }
  /// Before run(), which then ends as by SIGTERM when one of these can be read from.
  void end_with(std::vector<int> descriptors) { ends_with_ = std::move(descriptors); }
  /// Runs the job to its end, and removes what was only temporary.
  JobResult run();
  /// Signals that come from now on change nothing any more: for a program that only has to say how
  /// the job ended, and with which exit code.
  void ignore_signals();
  logs::Console& console() { return console_; }
  /// The threads for files that may be on a file system that does not answer.
  files::BlockingCalls& lane(files::Lane lane) { return lanes_[lane]; }
  /// After run(): what the sinks of --metrics made of what they were given. Waits for them, for two
  /// seconds at most, so it comes after the verdict.
  std::vector<exporter::SinkAccount> end_metrics() { return telemetry_->end_metrics(); }
  /// After run(), and after everything that is written because of its result: waits, as LastWrites
  /// does, until files and console have it; then, as StoreDrain does, for workers of other nodes.
  void finish() {
    end_metrics();
    files_->finish(*place_.store, store_needed_until_ - clock.now());
  }
  /// Where the run's records come from: for sinks of the caller's own, before run().
  telemetry::Pipeline& pipeline() { return telemetry_->pipeline(); }
  /// Whether the directory of the run was not named by the user, who must be told of it.
  bool is_temporary() const { return layout_.is_temporary(); }

 private:
  JobRun(const spec::JobSpec& its_spec, guardian::Agent& its_guardian, logs::Layout layout);
  // The parts, in the order of their needs: one holds those before it, and reaches later ones by a
  // call.
  Started<void> assemble(OwnRendezvous own);
  Status open_records();

  void post(Fact fact) override { agent_->post(std::move(fact)); }
  const workers::Worker* worker_of(pid_t process) const override {
    return agent_->worker_of(process);
  }
  const std::vector<workers::Worker>* workers() const override {
    return agent_ ? agent_->workers() : nullptr;
  }
  // In the order of local ranks. Fails with Io (directories, descriptors) or Usage (devices, CPUs).
  Result<std::vector<workers::WorkerPlan>> plan(const rendezvous::Round& round) override;
  void pushed(rendezvous::Push push) override {
    // First of all the caller's master: what is logged of a round is what its workers get.
    if (auto* ready = std::get_if<rendezvous::RoundReady>(&push))
      meet_at(place_.master, ready->round);
    if (!hang_->took(push)) files_->pass(std::move(push));
  }
  void check(RestartCheck::Then then) override {
    check_ ? check_->look(std::move(then)) : then({});
  }
  void explain(workers::Failure& failure) override {
    timers_->explain(failure);
    failure.page = pages_.read(failure.local_rank);
    // Killed by us: its SIGKILL says nothing about memory.
    if (!failure.expired_timer.empty()) return;
    const auto said = failure.exception ? failure.exception->text() : std::string();
    failure.out_of_memory = oom_kills_.diagnostics(failure.status, failure.pid, said);
  }
  workers::ErrorFileReader::Read error_file_reader() override {
    return workers::reader_by(lanes[files::Lane::Diagnostics]);
  }
  std::uint64_t written() const override { return system::bytes_written(containment_.processes()); }
  void catch_up() override { channel_.catch_up(); }
  void release() override { channel_.release(); }
  void answer_asker(const std::string& text) override { channel_.answer(text); }
  TimePoint activity() const override {
    return std::max({streams_.last_read(), place_.store->last_change(), timers_->last_request()});
  }
  std::string lasting_report() const override;
  RunCounts counts() const override {
    using Stream = logs::Console::Stream;
    return {place_.store->requests(), place_.store->visitors(), streams_.bytes(Stream::Out),
            streams_.bytes(Stream::Err), channel_.statistics()};
  }
  void save_takes(Duration time) override {
    if (sources_) sources_->save_takes(time);
  }

  // Brings each packet of the workers' channel to the consumer of its type.
  void heard(workers::Channel::Sender from, workers::Message message);
  void heard(pid_t sender, const workers::Worker& worker, workers::Message message);
  void refused(pid_t worker) {
    if (const auto* one = agent_->worker_of(worker)) telemetry_->worker_records().refused(*one, 1);
  }
  Result<workers::WorkerPlan> make_one(const rendezvous::Round& round, int local_rank,
                                       const std::string& directory, const std::string& channel);
  logs::StreamSettings stream_settings(const rendezvous::Round& round, int local_rank,
                                       const std::string& directory) const;
  // What could not be killed has been named; neither this process nor the guardian waits again.
  void end_all(const JobResult& result) {
    const bool given_up = containment_.left_alive() || !result.abandoned.empty();
    const auto ended =
        containment_.end_attempt(given_up ? process::kLastLook : process::kKillBound);
    if (given_up || !ended.alive.empty()) guardian.give_up();
  }
  bool keeps_records() const;
  // A few small files of a job that keeps nothing, or its channel alone, on this machine; others
  // may be on a file system that does not answer.
  bool files_are_near() const { return !keeps_records() && layout_.is_local(); }

  logs::Layout layout_;
  RunStatus status_;
  logs::StreamFactory streams_;
  workers::Channel channel_;
  workers::SharedPages pages_;
  system::OomKills oom_kills_;
  rendezvous::Node self_;
  RendezvousSetup place_;
  std::optional<Saving> saving_;
  StackOffers offers_;
  std::optional<ExpirationTimers> timers_;
  std::optional<HangWatch> hang_;
  std::unique_ptr<RunTelemetry> telemetry_;
  Binding binding_;
  std::unique_ptr<ForkServing> forks_;  // null: all workers are started by exec
  std::unique_ptr<Observer> web_;       // null: none asked for
  RestartMemoryFile memory_;
  std::optional<RestartCheck> check_;  // none: the policy does not ask for it
  std::optional<PreemptionSources> sources_;
  Observers observers_;
  std::optional<RunFiles> files_;
  std::optional<Agent> agent_;
  std::unique_ptr<RunSignals> signals_;
  std::vector<int> ends_with_;
  TimePoint store_needed_until_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
