// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/goodput/goodput_account.hpp"
#include "agent/telemetry/telemetry_host.hpp"
#include "core/clock.hpp"
#include "core/json.hpp"
#include "core/lifetime.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/ledger/monitor.hpp"
#include "system/machine.hpp"
#include "telemetry/registry.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

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
  void take(const system::MachineSample& sample);
  /// So far, until the last look; none before the second one.
  std::optional<Duration> busy() const;

 private:
  static bool is_busy(const system::MachineSample& sample);

  std::optional<TimePoint> last_;
  Duration busy_{};
  bool compared_ = false;
};

/// Watches the account of the job's time while the job runs: as a whole and over rolling windows of
/// an hour and a day, as instruments (elastrun-telemetry(7) lists them). Only the node of rank 0
/// tells anything, because only there steps are known. It wakes up at every interval where a sink
/// is told; sinks that pull cost no wake-up.
class GoodputMonitor final : public Observer {
 public:
  static constexpr Duration kInterval = std::chrono::seconds(30);

  struct Parts {
    Clock& clock;
    const GoodputAccount& account;
    TelemetryHost& host;
    MachineWatch* machine = nullptr;  // null: what accelerators do is not known
    /// Since when the job has its nodes, as the scheduler tells.
    std::optional<WallTime> scheduled;
  };
  /// Borrows all.
  GoodputMonitor(Parts parts, TimePoint job_start);

  // Each time at which the account has heard the same.
  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen);
  void on(const moment::RoundReady& seen);
  void on(const moment::Joined&) { take(); }
  void on(const moment::Restarting& seen);
  void on(const moment::Stopped&) { take(); }
  void on(const moment::Ended& seen);
  void on(const moment::WorkerSaid& seen);

  /// For /status: the job until now and its windows; null on other nodes.
  json::value status() const;

 private:
  using Report = telemetry::Registry::Report;
  void observe_all();
  void observe(telemetry::Kind kind, std::string_view name, std::string_view unit,
               std::string_view help, std::vector<std::string> label_keys,
               telemetry::Registry::Observer observer);
  std::vector<std::string> labels_of(goodput::Bucket bucket) const;
  void tell_badput(const Report& report) const;
  void tell_interval_goodput(const Report& report) const;
  void tell_interval_badput(const Report& report) const;
  Duration since_scheduled() const;
  std::optional<double> scheduling() const;

  void take();
  void watch();
  void tick();
  const goodput::Ledger::Summary& now() const;

  const Parts parts_;
  const TimePoint job_start_;
  const std::optional<Duration> waited_;  // since scheduled, before that
  goodput::Monitor monitor_;
  goodput::StepPace pace_;
  DutyCycle duty_;
  const std::unique_ptr<Alarm> tick_;
  bool here_ = false, watching_ = false;
  Phase phase_ = Phase::Joining;
  int disruptions_ = 0;
  /// One for all instruments of a collection; making one costs more than looking at it.
  mutable std::optional<goodput::Ledger::Summary> summary_;
  mutable TimePoint summary_at_;
  telemetry::Observations observations_{parts_.host.registry(), kAgentScope};
  Lifetime lifetime_;  // the machine may be looked at when we go
};

}  // namespace elastrun::agent
