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
  void heard(const Moment& one) override {
    if (pipeline_.wants(kScope)) dispatch(one, *this);
  }
  using Observer::on;
  void on(const moment::PhaseChanged& seen);
  void on(const moment::Progress& seen);
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::Joined& seen);
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen) { tell_restart("restart", seen.order); }
  void on(const moment::RoleRestarting& seen) { tell_restart("role.restart", seen.order); }
  void on(const moment::Stopped& seen);
  void on(const TimerExpired& seen);
  void on(const TimerKilled& seen);
  void on(const HangSeen& seen);
  void on(const moment::Ended& seen);
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
