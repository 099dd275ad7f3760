// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/telemetry/telemetry_host.hpp"
#include "telemetry/instruments.hpp"

#include <optional>
#include <string>

namespace elastrun::agent {

/// What the agent measures of itself: elastrun-telemetry(7) lists the instruments. Beside them it
/// tells the pipeline of each stretch of time that has ended (rendezvous, start, stop, the life of
/// a worker) as a span, for traces.
class AgentMetrics final : public Observer {
 public:
  static constexpr std::string_view kScope = kAgentScope;
  /// Borrows the host. `start`: of the job.
  AgentMetrics(TelemetryHost& host, TimePoint start, int max_restarts);

  void phase(Phase phase, TimePoint now) override;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void restarting(const rendezvous::Restart& order) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;

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

}  // namespace elastrun::agent
