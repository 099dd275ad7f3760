// SPDX-License-Identifier: Apache-2.0
// What the restart policy and a preemption add to rounds. Facts come in through state.cpp.
#include "rendezvous/membership/state.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {

/// By which a machine is known over requeues: ids have a process in them. Empty for the only one of
/// a job. The coordinator's own has the address that its successor will see it under.
std::string State::machine_of(const Node& node) const {
  const bool is_own = is_loopback(node.address);
  if (node.host.empty()) return is_own ? std::string() : node.address;
  return node.host + " (" + (is_own && !reachable_.empty() ? reachable_ : node.address) + ")";
}

RestartDecision State::decide_restart(const Cause& cause, TimePoint now) {
  if (restart_rule_.is_plain()) return restart_rule_.decide(cause, now);
  const Node* node = nullptr;
  for (const auto& [peer, member] : roster_.all()) {
    if (member.node.id == cause.node) node = &member.node;
  }
  for (const auto& gone : gone_) {
    if (gone.node.id == cause.node) node = &gone.node;
  }
  if (node == nullptr) return restart_rule_.decide(cause, now);
  return restart_rule_.decide(cause, now, machine_of(*node), node->role);
}

bool State::is_left_out(const Member& member, TimePoint now) const {
  // Where each rank is one node's, none can take its place.
  return !rules_.fixed_ranks && restart_rule_.is_excluded(machine_of(member.node), now);
}

// Those that a larger world would have. One that is left out stays as a spare: it may host the
// coordinator, and is taken again where others go.
int State::waiting_for_places() const {
  const int waiting = roster_.count(MemberState::Waiting);
  if (!restart_rule_.may_exclude() || waiting == 0) return waiting;
  return static_cast<int>(std::ranges::count_if(roster_.all(), [this](const auto& each) {
    return each.second.state == MemberState::Waiting && !is_left_out(each.second, now_);
  }));
}

// What it carries is taken once: nodes are copied into worlds.
void State::take_memory(Member& member, TimePoint now) {
  if (const auto memory = std::exchange(member.node.memory, nullptr)) {
    restart_rule_.learn(*memory, now);
  }
  const auto fault = std::exchange(member.node.fault, {});
  if (fault.empty()) return;
  restart_rule_.blame(machine_of(member.node), fault, now, 2);
}

void State::preempting(Cause cause, TimePoint now) {
  if (phase_ == Phase::Ended || phase_ == Phase::Verdict) return;
  const std::string text = cause.text;
  preempting_ = std::move(cause);
  if (phase_ == Phase::Joining) return preempted(text, now);  // nothing runs that could save
  growth_at_.reset();
}

bool State::let_spare_go(Peer peer, const std::string& why, TimePoint now) {
  const Member* member = roster_.find(peer);
  const bool waits = member != nullptr && member->state == MemberState::Waiting;
  if (!waits || phase_ != Phase::Running) return false;
  Cause cause{.kind = Cause::Kind::Preempted, .node = member->node.id};
  cause.text = "preempted (" + why + "): a spare, without which the job runs on";
  tell(peer, Done{true, std::move(cause)});
  leave(peer, why, now);
  return true;
}

void State::preempted(const std::string& text, TimePoint now) {
  if (!preempting_ || phase_ == Phase::Ended) return;
  preempting_->text = text;
  end({true, *preempting_}, now);
}

}  // namespace elastrun::rendezvous
