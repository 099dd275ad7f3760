// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "workers/shared_page.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// How far the workers of this node are, in steps and checkpoints, and what tells them to save:
/// for the restart policy and for a preemption.
class Saving final : public Observer {
 public:
  /// Borrows all. It tells each new checkpoint where the restart policy goes by them, and waits for
  /// every rank to save with --preempt-ack-all, else for rank 0.
  Saving(RunContext& run, rendezvous::Session& session, workers::SharedPages& pages)
      : run_(run), session_(session), pages_(pages), look_(run.clock.make_alarm()) {}

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::WorkerSaid& seen);

  /// Adds to the cause of a failure at which step it was, and what was saved.
  void describe(rendezvous::Cause& cause) const;
  /// Tells the coordinator how far they are, after a moment in which it looks how quick they are.
  void answer();
  /// A preemption has been asked for.
  void asked(const std::string& why);
  /// Writes into the pages of the workers when to save.
  void order(const rendezvous::SaveAt& order);
  /// Whether a worker asks if it is to save, or may come to ask.
  bool looks() const;
  /// Workers that have ended badly since the order: one that has not saved has failed to.
  void failed_to_save(std::vector<workers::Failure> failures);
  /// Tells the coordinator of a save that has failed, if one has.
  void tell_failure() {
    if (account_ && !account_->failure.empty()) tell();
  }
  /// Of a preemption; none was asked for.
  std::optional<PreemptionAccount> account() const;

 private:
  struct Steps {
    std::int64_t first = -1, last = -1;
    TimePoint first_at{}, at{};
    TimePoint save_from{};     // of the last step, or what came after it but a save
    std::int64_t looked = -1;  // the last one when a preemption asked; -1: none has
  };
  rendezvous::Reached reached() const;
  Duration pace_of(const Steps& steps) const;
  bool may_ask(int rank, const workers::PageContents& page) const;
  void look_at_pages();
  void tell() { session_.report(reached()); }
  void saved(int rank, std::int64_t step);
  void heard_step(int rank, std::int64_t step);
  void time_save(int rank, const workers::Message& message);

  RunContext& run_;
  rendezvous::Session& session_;
  workers::SharedPages& pages_;
  std::int64_t round_ = 0;
  std::map<int, Steps> steps_;              // by rank, of this attempt
  std::vector<std::pair<int, int>> ranks_;  // local ranks and ranks of the group
  std::int64_t checkpoint_ = -1, before_order_ = -1;
  std::optional<rendezvous::SaveAt> order_;
  std::set<int> saved_;                // ranks, since the order
  std::map<int, std::int64_t> early_;  // what ranks have saved since then, before its step
  std::set<int> savers_;               // those that have ever told of a checkpoint
  std::optional<PreemptionAccount> account_;
  std::unique_ptr<Alarm> look_;
};

}  // namespace elastrun::agent
