// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/telemetry/intake.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/route.hpp"
#include "workers/worker.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace elastrun::agent {

/// Tells the pipeline what the workers of this node report, each with its rank, local_rank, role
/// and attempt, and within the limits of Intake. elastrun-protocol(7) lists the names.
/// Without a route nothing is built.
class WorkerRecords final : public Observer {
 public:
  static constexpr std::string_view kScope = "elastrun.worker";

  /// Borrows both.
  WorkerRecords(telemetry::Pipeline& pipeline, const spec::JobSpec& spec)
      : pipeline_(pipeline), spec_(spec) {}

  /// Called when more of what the worker of that local rank has said in this round is not taken,
  /// with how much that is in all.
  void on_refused(std::function<void(int local_rank, std::uint64_t count)> call) {
    tell_refused_ = std::move(call);
  }
  /// The same, for what was refused before it came here.
  void refused(const workers::Worker& worker, std::uint64_t count);
  void heard(const Moment& one) override { dispatch(one, *this); }
  using Observer::on;
  void on(const moment::RoundReady& seen);
  void on(const moment::WorkerSaid& seen) { heard(seen.worker, seen.said); }
  /// What a worker said over its channel: of its training, and a sample that may sum up others, as
  /// an observer; else as the consumer of events and of samples one by one.
  void heard(const workers::Worker& worker, workers::Message message);
  const Intake::Statistics& statistics() const { return intake_.statistics(); }

 private:
  /// Within the limits; what it says may be another series then.
  bool admits(const workers::Worker& worker, workers::Message& message);
  using Attributes = std::vector<telemetry::Attribute>;
  Attributes labels(const workers::Worker& worker) const;
  telemetry::Record record(telemetry::Record::Kind kind, std::string scope, std::string name,
                           Attributes attributes) const;
  void tell(const workers::Worker& worker, workers::StepDone step);
  void tell(const workers::Worker& worker, workers::CheckpointDone checkpoint);
  void tell(const workers::Worker& worker, const workers::PhaseEntered& phase);
  void tell(const workers::Worker& worker, const workers::MetricSample& metric);
  void tell(const workers::Worker& worker, workers::WorkerEvent event);
  void tell(const workers::Worker& worker, workers::GoodputEntries said);
  void tell_total(const workers::Worker& worker, const workers::MetricSample& metric);
  void tell(const workers::Worker& worker, const workers::SamplesTold& told);
  void tell_batch(const workers::MetricSample& metric, telemetry::Record sample);
  void tell_stat(const workers::Worker& worker, const workers::WorkerEvent& event,
                 const Attributes& labels);

  telemetry::Pipeline& pipeline_;
  const spec::JobSpec& spec_;
  int attempt_ = 0;
  // Of the counters of each rank, by group and name: Intake says how many there may be.
  std::map<std::tuple<int, std::string, std::string>, double> totals_;
  Intake intake_;
  std::map<int, std::uint64_t> refused_;  // in this round, by local rank
  std::function<void(int, std::uint64_t)> tell_refused_;
};

}  // namespace elastrun::agent
