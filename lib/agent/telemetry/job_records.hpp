// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/route.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace elastrun::agent {

/// Tells the pipeline what the agent does, as events of the scope "elastrun.agent": for the journal
/// and every other sink. elastrun-protocol(7) lists the names and attributes. Without a route
/// nothing is built.
class JobRecords final : public Observer {
 public:
  static constexpr std::string_view kScope = kAgentScope;

  /// Borrows both.
  JobRecords(telemetry::Pipeline& pipeline, const spec::JobSpec& job)
      : pipeline_(pipeline), job_(job) {}

  /// First of all: what the job is. `since_start`: so long ago its agent began.
  void begin(Duration since_start);
  void phase(Phase phase, TimePoint now) override;
  void progress(const std::string& text) override;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void joined(bool all) override;
  void failed(const workers::Judgement& judgement) override;
  void restarting(const rendezvous::Restart& order) override;
  void role_restarting(const rendezvous::Restart& order) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
  void timer_expired(const ExpiredTimer& timer) override;
  void timer_killed(const ExpiredTimer& timer) override;
  void hang(const JobHang& hang) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;
  /// Last of all: where the time went.
  void summary(const goodput::Ledger::Summary& summary);

 private:
  using Attributes = std::vector<telemetry::Attribute>;
  void tell(std::string_view name, Attributes attributes);
  void tell_restart(std::string_view name, const rendezvous::Restart& order);

  telemetry::Pipeline& pipeline_;
  const spec::JobSpec& job_;
  TimePoint phase_since_;
};

}  // namespace elastrun::agent
