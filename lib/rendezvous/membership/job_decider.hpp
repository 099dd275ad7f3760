// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/preemption.hpp"
#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/membership/state.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::rendezvous {

/// Decides all about one job: its rounds (State), whether its workers hang (Standstill), and the
/// save before it is preempted (Preemption). Pure, as its parts; facts that concern rounds alone go
/// to `state`.
class JobDecider {
 public:
  JobDecider(const Rules& rules, std::string run_id, std::string master_addr,
             std::uint16_t master_port)
      : state(rules, std::move(run_id), std::move(master_addr), master_port),
        preemption_(rules.preempt_ack_all) {}

  /// Hears what the agent of a member says.
  void report(Peer peer, Report report, TimePoint now) {
    std::visit([&](auto& said) { on(peer, said, now); }, report);
  }
  /// Its connection has ended, and why.
  void lost(Peer peer, const std::string& why, TimePoint now, Loss loss) {
    state.depart(peer, why, now, loss);
    gone(peer, now);
  }
  void tick(TimePoint now) {
    state.tick(now);
    look_at_round();
    standstill_.tick(now);
    preemption_.tick(now);
  }
  std::optional<TimePoint> deadline() const {  // of `tick`
    auto due = state.deadline();
    for (const auto& other : {standstill_.deadline(), preemption_.deadline()})
      if (other) due = std::min(due.value_or(*other), *other);
    return due;
  }
  /// Everything to be told since the last call, in order; some of it to clients that have asked
  /// where the workers stand.
  std::vector<Delivery> take(TimePoint now) {
    // First, so that what this makes the state say goes out below.
    if (preemption_.take_over()) state.preempted(preemption_.text(), now);
    auto all = state.take();
    for (const Delivery& delivery : all) note(delivery, now);
    look_at_round();
    for (auto& [peer, push] : standstill_.take()) all.push_back({peer, std::move(push)});
    for (auto& [peer, push] : preemption_.take()) all.push_back({peer, std::move(push)});
    return all;
  }
  /// Workers that are stopped or traced, by rank, and by what.
  std::map<int, std::string> held() const { return standstill_.held(); }

  State state;

 private:
  void on(Peer peer, const Started& said, TimePoint now) {
    state.started(peer, said.round);
    standstill_.started(peer, said.round, now);
  }
  void on(Peer peer, Failed& said, TimePoint now) {
    state.fail(peer, said.round, std::move(said.cause), now, said.goes_on);
    look_at_round();
  }
  void on(Peer peer, const Succeeded& said, TimePoint now) {
    state.succeed(peer, said.round, now);
    look_at_round();
    standstill_.finished(peer, now);
  }
  void on(Peer peer, const Leaving& said, TimePoint now) {
    // Before it leaves: afterwards it is not a member any more, and its reason is lost.
    if (said.unable) state.cannot_start(peer, said.why, now);
    const auto kind = said.killed ? Cause::Kind::NodeLost : Cause::Kind::NodeLeft;
    state.leave(peer, said.why, now, said.grace, kind);
    gone(peer, now);
  }
  void on(Peer peer, const ProgressReport& said, TimePoint now) {
    standstill_.says(peer, said, now);
  }
  void on(Peer peer, NodeStacks& said, TimePoint now) {
    standstill_.answers(peer, std::move(said), now);
  }
  void on(Peer peer, const AskStacks&, TimePoint now) { standstill_.asks(peer, now); }
  // Also of a job without preemption: new checkpoints count for its restarts.
  void on(Peer peer, const Reached& said, TimePoint now) {
    if (said.checkpoint >= 0) state.saved(said.checkpoint);
    preemption_.says(peer, said, now);
    if (!said.failure.empty() && preemption_.is_asked()) state.preempting(preemption_.cause(), now);
  }
  void on(Peer peer, const AskPreempt& said, TimePoint now) {
    // Without its coordinator the round would end as well.
    if (!said.hosts && state.let_spare_go(peer, said.why, now)) return;
    if (preemption_.ask(said.why, said.deadline, now)) state.preempting(preemption_.cause(), now);
  }

  void gone(Peer peer, TimePoint now) {
    look_at_round();
    standstill_.gone(peer, now);
    preemption_.gone(peer, now);
  }
  // Whether there still is a round that could hang.
  void look_at_round() {
    if (state.phase() != Phase::Running) standstill_.broken_up();
  }
  void note(const Delivery& delivery, TimePoint now) {
    if (const auto* assigned = std::get_if<Assigned>(&delivery.notice)) {
      const World& world = *assigned->world;
      const auto at = static_cast<std::size_t>(assigned->group_rank);
      standstill_.assigned(delivery.to, world.id.round, world.members[at], world.ranks.of[at].rank);
      preemption_.assigned(delivery.to, world.id.round, assigned->group_rank);
      return;
    }
    const auto& push = *std::get<std::shared_ptr<const Push>>(delivery.notice);
    if (!std::holds_alternative<Restart>(push) || !state.is_renewing(delivery.to)) return;
    // Until its role runs again it neither hangs nor saves, and is not waited for.
    standstill_.renews(delivery.to);
    preemption_.gone(delivery.to, now);
  }

  Standstill standstill_;
  Preemption preemption_;
};

}  // namespace elastrun::rendezvous
