// SPDX-License-Identifier: Apache-2.0
// How one role starts again in a round that goes on. Facts come in through state.cpp.
#include "rendezvous/membership/state.hpp"
#include "rendezvous/membership/wording.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

namespace elastrun::rendezvous {

void State::stand_still(Duration time) {
  join_phase_.stand_still(time);
  roles_.stand_still(time);
}

bool State::is_renewing(Peer peer) const {
  const auto found = roster_.all().find(peer);
  return found != roster_.all().end() && found->second.state == MemberState::Renewing;
}

// The member itself, or null. A group that hangs and goes on hangs with all others.
const Member* State::may_restart_alone(const Member& member, bool goes_on) const {
  if (!roles_.world() || goes_on || phase_ != Phase::Running || preempting_) return nullptr;
  const auto here = std::ranges::count_if(roster_.all(), [&](const auto& each) {
    const Member& other = each.second;
    return other.node.role == member.node.role && other.world.is_same(member.world) &&
           (other.state == MemberState::Running || other.state == MemberState::Finished);
  });
  return roles_.can_restart(member.node.role, static_cast<int>(here)) ? &member : nullptr;
}

void State::restart_role(const Member& first, Cause cause, const RestartDecision& decision,
                         TimePoint now) {
  const std::string role = first.node.role;
  RoleRestarts::Renewal renewal{cause, decision, 0, now + decision.delay, now};
  std::vector<Member*> all;
  for (auto& [peer, member] : roster_.all()) {
    if (!takes_part(member.state)) continue;
    all.push_back(&member);
    if (member.node.role != role) continue;
    if (!member.knows_stop) member.stops_by = now + rules_.reaction + member.node.grace;
    roster_.move(member, MemberState::Renewing, now);
    member.started = member.back = false;
    ++renewal.missing;
    renewal.until = std::max(renewal.until, member.stops_by);
  }
  renewal.until += rules_.join_timeout + decision.delay;
  ending_ = roster_.count(MemberState::Finished) > 0;
  roles_.begin(role, std::move(renewal));
  // The others, too: they tell of it, and count it where this coordinator is lost.
  Restart order{std::move(cause), decision.attempt_spent, decision.restarts_left, decision.delay,
                restart_rule_.carried_memory(now)};
  order.role = role;
  tell_all(all, std::move(order));
}

// Its group has ended, and the round runs on.
void State::come_back_in_role(Member& member, Node node, TimePoint now) {
  const std::string role = member.node.role;
  const bool same = node.role == role && node.local_world_size == member.node.local_world_size;
  roster_.describe(member, std::move(node));
  take_memory(member, now);
  const bool was_back = std::exchange(member.back, true);
  if (!same && phase_ == Phase::Running) {  // its ranks would be others
    const Node& other = member.node;
    return void(restart(
        {.kind = Cause::Kind::NodeLeft, .node = other.id, .text = rejoined_text(other)}, now));
  }
  if (!was_back) roles_.came_back(role);
  advance(now);
}

void State::advance_roles(TimePoint now) {
  for (;;) {
    const auto [step, role] = roles_.next(now, world_fence_.held());
    if (step == RoleRestarts::Step::Wait) return;
    if (step == RoleRestarts::Step::GiveUp) {
      Cause late{.kind = Cause::Kind::Timeout};
      late.text = role_timeout_text(role, rules_);
      return give_role_up(role, std::move(late), now);
    }
    start_role_again(role, now);
    if (phase_ != Phase::Running) return;
  }
}

// The restart that was decided becomes one of all, and costs nothing more.
void State::give_role_up(const std::string& role, Cause cause, TimePoint now) {
  RestartDecision decision = roles_.find(role)->decision;
  decision.attempt_spent = false, decision.delay = {};
  break_up(std::move(cause), decision, now);
}

void State::start_role_again(const std::string& role, TimePoint now) {
  const auto renewal = *roles_.find(role);
  std::vector<Node> nodes = roles_.world()->members;
  std::vector<std::pair<Member*, int>> members;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].role != role) continue;
    Member* member = roster_.find(nodes[i]);
    const bool there = member != nullptr && member->state == MemberState::Renewing;
    // Its check has failed, or it is none of the round's: another one has to take its place.
    if (!there || is_left_out(*member, now)) return give_role_up(role, renewal.cause, now);
    nodes[i] = member->node;
    members.emplace_back(member, static_cast<int>(i));
  }
  replace_loopback(nodes, reachable_);
  World again = start_again(*roles_.world(), role, std::move(nodes), renewal.decision.attempt_spent,
                            attempt());
  again.left = restart_rule_.left();
  const auto world = std::make_shared<const World>(std::move(again));
  roles_.end(role);
  roles_.formed(world);
  for (const auto& [member, group_rank] : members) {
    roster_.move(*member, MemberState::Running, now);
    member->started = member->knows_stop = member->back = false;
    world_fence_.fence.resumed(agent_name(member->node));
    deliveries_.push_back({member->peer, Assigned{world, group_rank}});
  }
}

// A name that no agent has would leave a job without the restarts that it was to have.
bool State::misses_role(const World& world, TimePoint now) {
  // Of a job that may grow the nodes of that role may be those that come later.
  const bool is_whole = static_cast<int>(world.members.size()) >= rules_.max_nodes;
  if (!roles_.are_any() || !is_whole || past_.highest() > 0) return false;
  std::set<std::string> there;
  for (const auto& [peer, member] : roster_.all()) there.insert(member.node.role);
  const auto missing = roles_.missing_in(there);
  if (!missing) return false;
  Cause cause{.kind = Cause::Kind::Closed};
  cause.text = missing_role_text(*missing, {there.begin(), there.end()});
  cause.misuse = true;
  end({true, std::move(cause)}, now);
  return true;
}

// Whether the end of another one's group says that this one's has ended: they work together.
bool State::has_companion(const Member& member) const {
  if (!roles_.are_any()) return true;
  const auto unit = roles_.unit_of(member.node.role);
  return std::ranges::any_of(roster_.all(), [&](const auto& each) {
    const Member& other = each.second;
    return &other != &member && other.world.is_same(member.world) &&
           roles_.unit_of(other.node.role) == unit;
  });
}

}  // namespace elastrun::rendezvous
