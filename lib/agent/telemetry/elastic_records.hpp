// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/events.hpp"
#include "telemetry/metrics.hpp"

#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// Emits torchelastic's events and metrics (torchrun-parity 9 and 10) for what the agent does.
/// Costs next to nothing while no handler wants them.
class ElasticRecords final : public Observer {
 public:
  /// `has_fifo`: of torch's timers; empty: none. torch tells of its watchdog only where it runs.
  ElasticRecords(telemetry::Pipeline& pipeline, telemetry::events::AgentFacts facts,
                 const spec::JobSpec& job, std::function<bool()> has_fifo = {});

  /// From now on it looks at the workers that run every --monitor-interval, as torchrun does, for
  /// those who want each sample; others hear of what happened.
  void look_by(Clock& clock) { alarm_ = clock.make_alarm(); }

  void phase(Phase phase, TimePoint now) override;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void failed(const workers::Judgement& judgement) override;
  void restarting(const rendezvous::Restart& order) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
  void timer_expired(const ExpiredTimer& timer) override;
  void timer_killed(const ExpiredTimer& timer) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;

 private:
  void profile(std::string_view method, Duration took, bool success = true);
  void pass(std::string_view state, Duration took);
  std::pair<bool, Duration> look_at_workers() const;
  void wait_for_look();
  void look();
  void put_each(std::string name, telemetry::Value value);
  void watchdog(std::string_view event, const ExpiredTimer* timer = nullptr);
  void raised(const JobResult& result, Duration took);
  void end_of_workers(const JobResult& result, const std::vector<workers::Worker>& group);
  telemetry::events::WorkerFacts facts_of(const workers::Worker& worker) const;

  telemetry::Pipeline& pipeline_;
  telemetry::metrics::Metrics metrics_;
  telemetry::events::AgentFacts facts_;
  const spec::JobSpec& job_;
  const std::function<bool()> has_fifo_;
  int restarts_left_;
  const TimePoint start_;
  std::unique_ptr<Alarm> alarm_;  // of the next look
  std::vector<pid_t> running_;    // the workers that are looked at
  bool restarting_ = false;
  TimePoint restart_began_{};
  std::optional<TimePoint> joining_since_;
  Duration waited_{};  // for the round
  int role_rank_base_ = 0, role_world_size_ = 1;
};

}  // namespace elastrun::agent
