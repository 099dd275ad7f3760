// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/observer.hpp"
#include "goodput/ledger.hpp"

#include <optional>

namespace elastrun::agent {

/// Keeps the ledger of where the job's time goes, from what the agent does and workers report. What
/// ran since the last checkpoint is lost whenever the workers do not come to their end, whoever is
/// to blame: another node or a signal as much as a worker of ours.
class GoodputAccount final : public Observer {
 public:
  /// `several_nodes`: waiting for the first round is waiting for others, not start-up.
  GoodputAccount(Clock& clock, TimePoint job_start, bool several_nodes);

  void phase(Phase phase, TimePoint now) override;
  void restarting(const rendezvous::Restart& order) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;

  void step(std::int64_t number) { ledger_.step(number, clock_.now()); }
  void checkpoint(std::int64_t number) { ledger_.checkpoint(number, clock_.now()); }
  goodput::Ledger::Summary summary() const { return ledger_.summary(clock_.now()); }

 private:
  void stopping(TimePoint now);
  void lose_uncovered(goodput::Bucket next);

  Clock& clock_;
  goodput::Ledger ledger_;
  const bool several_nodes_;
  Phase phase_ = Phase::Joining;
  bool ran_ = false, restarting_ = false;
  bool gone_ = true;                         // no group exists
  std::optional<TimePoint> stopping_since_;  // as long as nobody has said what comes after
};

}  // namespace elastrun::agent
