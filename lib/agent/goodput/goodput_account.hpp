// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "goodput/account/job_account.hpp"
#include "workers/message.hpp"

namespace elastrun::agent {

/// Whether it counts among the failures of a job: not a node that came or left.
bool is_failure(const rendezvous::Cause& cause);

/// Tells the account of where the job's time goes what the agent does and workers report, as it
/// happens.
class GoodputAccount final : public Observer {
 public:
  /// `hears_workers`: else only what the agent does counts.
  GoodputAccount(Clock& clock, TimePoint job_start, bool several_nodes, bool hears_workers = true)
      : clock_(clock),
        hears_workers_(hears_workers),
        account_(job_start, several_nodes, clock.now()) {}

  void phase(Phase phase, TimePoint now) override { account_.phase(phase, phase_since_ = now); }
  void round_ready(const rendezvous::Round& round, Duration) override {
    account_.world(round.world_size);
    first_rank_ = round.rank_base;
  }
  void joined(bool all) override { account_.joined(all, clock_.now()); }
  void failed(const workers::Judgement& judgement) override;
  void restarting(const rendezvous::Restart& order) override;
  void hang(const JobHang& hang) override { account_.hang(hang.standing, clock_.now()); }
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;

  /// Steps, phases and recorders of rank 0, and checkpoints of all ranks of this node. Where rank 0
  /// is on another node, those of the first rank of this one.
  void worker_said(const workers::Worker& worker, const workers::Message& message) override;
  void step(std::int64_t number) { account_.step(number, clock_.now()); }
  void checkpoint(std::int64_t number, std::int64_t rank = 0) {
    account_.checkpoint(rank, number, clock_.now());
  }
  goodput::Ledger::Summary summary() const { return account_.summary(clock_.now()); }
  /// Where the time went until now.
  void tell(JobResult& result) const;

 private:
  Clock& clock_;
  const bool hears_workers_;
  goodput::JobAccount account_;
  TimePoint phase_since_;
  int first_rank_ = 0;  // of this node
};

}  // namespace elastrun::agent
