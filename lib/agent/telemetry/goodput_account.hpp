// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/telemetry/run_metrics.hpp"
#include "core/clock.hpp"
#include "core/json.hpp"
#include "core/lifetime.hpp"
#include "goodput/account/job_account.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/ledger/monitor.hpp"
#include "system/machine.hpp"
#include "telemetry/registry.hpp"
#include "workers/message.hpp"

#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Whether it counts among the failures of a job: not a node that came or left.
bool is_failure(const rendezvous::Cause& cause);

/// Since when a scheduler has known the job or given it this node, from what is in `environment`
/// and on this machine; no scheduler is asked. The first of
///
/// * ELASTRUN_JOB_CREATED, in seconds since the epoch or as 2026-01-02T03:04:05Z: on Kubernetes an
///   annotation of the pod that the downward API hands on
/// * SLURM_JOB_START_TIME
/// * on Kubernetes, when kubelet made the volume of the pod's service account, which comes after
///   the pod was assigned to the node and before its images are pulled
///
/// None: nothing tells. `root`: where the machine's files are, for tests.
std::optional<WallTime> scheduled_since(const std::vector<std::string>& environment,
                                        const std::string& root = "");

/// How long the accelerators of this node were busy, or where it has none its workers' processors,
/// by looks at the machine: from one to the next all of them were, or they were not. Pure.
class DutyCycle {
 public:
  /// Less is idle: what a driver, a display or a worker that waits takes.
  static constexpr double kIdle = 0.1;

  /// In the order of their times; one that came too late to be new changes nothing.
  void take(const system::MachineSample& sample) {
    if (last_ && sample.at <= *last_) return;
    if (last_) {
      compared_ = true;
      // A look tells of the time before it: processors by what was used since the last one, GPUs by
      // their last moments, which stand for the rest.
      if (is_busy(sample)) busy_ += sample.at - *last_;
    }
    last_ = sample.at;
  }
  /// So far, until the last look; none before the second one.
  std::optional<Duration> busy() const { return compared_ ? std::optional(busy_) : std::nullopt; }

 private:
  static bool is_busy(const system::MachineSample& sample);

  std::optional<TimePoint> last_;
  Duration busy_{};
  bool compared_ = false;
};

/// Who looks at the account of the job's time; borrowed.
struct AccountViewers {
  TelemetryHost* host = nullptr;    // null: there is none
  MachineWatch* machine = nullptr;  // null: what accelerators do is not known
  /// Since when the job has its nodes, as the scheduler tells.
  std::optional<WallTime> scheduled{};
};

/// Keeps the account of where the job's time goes, from what the agent does and workers report, as
/// it happens. Shows it to its viewers while the job runs: as a whole and over rolling windows of
/// an hour and a day, as instruments (elastrun-telemetry(7) lists them). Only the node
/// of rank 0 shows anything, because only there steps are known. It wakes up at every interval
/// where a sink is told; sinks that pull cost no wake-up.
class GoodputAccount final : public Observes<GoodputAccount> {
 public:
  static constexpr Duration kInterval = std::chrono::seconds(30);

  /// `hears_workers`: else only what the agent does counts.
  GoodputAccount(Clock& clock, TimePoint job_start, bool several_nodes, bool hears_workers = true,
                 AccountViewers viewers = {});

  void on(const moment::PhaseChanged& seen) {
    phase_ = seen.phase;
    account_.phase(seen.phase, phase_since_ = seen.now);
    // Or the step that a restart interrupts would count with the time of the restart.
    pace_.interrupt();
    take();
    if (seen.phase == Phase::Running && here_ && viewers_.host) viewers_.host->recorded();
  }
  void on(const moment::RoundReady& seen) {
    account_.world(seen.round.world_size);
    first_rank_ = seen.round.rank_base;
    // Only this agent hears of steps, and what is of the job must be told once.
    here_ = seen.round.group_rank == 0;
    take();
    watch();
  }
  void on(const moment::Joined& seen) {
    account_.joined(seen.all, clock_.now());
    take();
  }
  void on(const moment::Failed& seen) {
    const auto& first = seen.judgement.first();
    account_.noticed_after(phase_since_ - first.at, workers::exit_time(first),
                           cause_of(first, {}).text);
  }
  void on(const moment::Restarting& seen);
  void on(const HangSeen& seen) { account_.hang(seen.hang->standing, clock_.now()); }
  void on(const moment::Stopped& seen) {
    account_.stopped(std::ranges::any_of(seen.group, &workers::Worker::failed), clock_.now());
    take();
  }
  void on(const moment::Ended& seen);
  void on(const moment::WorkerSaid& seen) {
    if (!hears_workers_) return;
    if (const auto* one = std::get_if<workers::CheckpointDone>(&seen.said))
      checkpoint(one->step, seen.worker.rank);
    // The steps of one rank stand for all; a checkpoint counts once all ranks that save have it. It
    // is rank 0, where that is here. Else it is not asked for, until the node of rank 0 is lost:
    // the account of the one that follows must not begin with hours in which nothing was done.
    if (seen.worker.rank == first_rank_) hear(seen.said);
    if (viewers_.host && monitor_.is_due(clock_.now() - job_start_)) take();
  }

  /// Steps, phases and recorders of rank 0, and checkpoints of all ranks of this node. Where rank 0
  /// is on another node, those of the first rank of this one.
  void step(std::int64_t number) {
    account_.step(number, clock_.now());
    if (first_rank_ == 0) pace_.step(number, clock_.now());
  }
  void checkpoint(std::int64_t number, std::int64_t rank = 0) {
    account_.checkpoint(rank, number, clock_.now());
  }
  goodput::Ledger::Summary summary() const { return account_.summary(clock_.now()); }
  /// Where the time went until now.
  void tell(JobResult& result) const {
    result.goodput = account_.summary(clock_.now());
    result.restart_paths = account_.restarts().paths();
    result.starts = account_.starts(clock_.now());
  }
  /// For /status: the job until now and its windows; null on other nodes, and without viewers.
  json::value status() const;

 private:
  using Report = telemetry::Registry::Report;
  void hear(const workers::Message& said);
  void observe_all();
  void observe(telemetry::Kind kind, std::string_view name, std::string_view unit,
               std::string_view help, std::vector<std::string> label_keys,
               telemetry::Registry::Observer observer) {
    observations_->add(kind,
                       {.name = fmt::format("elastrun.{}", name),
                        .unit = std::string(unit),
                        .help = std::string(help),
                        .label_keys = std::move(label_keys),
                        .window = kInterval,
                        .tells_empty = false},
                       std::move(observer));
  }
  // The reference's words for where time went, and the bucket, of which there are more.
  std::vector<std::string> labels_of(goodput::Bucket bucket) const {
    return {std::string(goodput::badput_source(bucket, now().steps_known())),
            std::string(goodput::bucket_name(bucket))};
  }
  void tell_badput(const Report& report) const;
  void tell_interval_goodput(const Report& report) const;
  void tell_interval_badput(const Report& report) const;
  // Or else since the start of the job.
  Duration since_scheduled() const { return waited_.value_or(Duration::zero()) + now().elapsed; }
  std::optional<double> scheduling() const;

  void take() {
    if (viewers_.host == nullptr) return;
    summary_.reset();
    monitor_.take(now());
  }
  // From the first round on, in which it is known who has rank 0.
  void watch() {
    // Without a reader of it nothing ticks: an idle agent wakes no processor.
    if (!here_ || !viewers_.host || !viewers_.host->tells() || std::exchange(watching_, true))
      return;
    tick_->arm(clock_.now() + kInterval, [this] { tick(); });
  }
  void tick() {
    watching_ = false;
    // Rank 0 is on another node by now, whose agent goes on.
    if (!here_) return;
    take();
    // For on_sample(): how long accelerators are busy is known by looks, for which no sink may ask.
    if (viewers_.machine != nullptr) viewers_.machine->look([](const system::MachineSample&) {});
    viewers_.host->recorded();
    watch();
  }
  const goodput::Ledger::Summary& now() const;

  Clock& clock_;
  const TimePoint job_start_;
  const bool hears_workers_;
  const AccountViewers viewers_;
  const std::optional<Duration> waited_;  // since scheduled, before that
  goodput::JobAccount account_;
  goodput::Monitor monitor_;
  goodput::StepPace pace_;
  DutyCycle duty_;
  const std::unique_ptr<Alarm> tick_;
  TimePoint phase_since_;
  Phase phase_ = Phase::Joining;
  int first_rank_ = 0;  // of this node
  bool here_ = false, watching_ = false;
  int disruptions_ = 0;
  /// One for all instruments of a collection; making one costs more than looking at it.
  mutable std::optional<goodput::Ledger::Summary> summary_;
  mutable TimePoint summary_at_;
  std::optional<telemetry::Observations> observations_;
  Lifetime lifetime_;  // the machine may be looked at when we go
};

}  // namespace elastrun::agent
