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

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen) { account_.phase(seen.phase, phase_since_ = seen.now); }
  void on(const moment::RoundReady& seen) {
    account_.world(seen.round.world_size);
    first_rank_ = seen.round.rank_base;
  }
  void on(const moment::Joined& seen) { account_.joined(seen.all, clock_.now()); }
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen);
  void on(const HangSeen& seen) { account_.hang(seen.hang->standing, clock_.now()); }
  void on(const moment::Stopped& seen);
  void on(const moment::Ended& seen);
  void on(const moment::WorkerSaid& seen);

  /// Steps, phases and recorders of rank 0, and checkpoints of all ranks of this node. Where rank 0
  /// is on another node, those of the first rank of this one.
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
