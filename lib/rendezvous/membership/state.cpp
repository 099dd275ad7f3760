// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/state.hpp"

#include "core/text.hpp"
#include "rendezvous/membership/wording.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {

State::State(Rules rules, std::string run_id, std::string master_addr, std::uint16_t master_port)
    : rules_(rules),
      run_id_(std::move(run_id)),
      master_addr_(std::move(master_addr)),
      master_port_(master_port),
      restart_rule_(restart_settings(rules, run_id_)),
      roles_(rules.role_restart) {}

void State::tell(Peer peer, Push push) {
  deliveries_.push_back({peer, std::make_shared<const Push>(std::move(push))});
}

void State::tell_all(const std::vector<Member*>& whom, Push push) {
  const auto shared = std::make_shared<const Push>(std::move(push));
  for (const Member* member : whom) deliveries_.push_back({member->peer, shared});
}

Quorum State::quorum() const {
  Quorum all{roster_.returning(), roster_.count(MemberState::Waiting) - roster_.returning(),
             roster_.count(MemberState::Stopping), past_.last_size(), past_.is_succession()};
  Quorum kept = all;
  for (const auto& [peer, member] : roster_.all()) {
    if (!restart_rule_.may_exclude()) break;
    if (member.state != MemberState::Waiting || !is_left_out(member, now_)) continue;
    --(member.returning ? kept.returning : kept.fresh);
  }
  // Left out only where enough others are there, or are about to come back.
  return kept.returning + kept.fresh + kept.stopping >= rules_.min_nodes ? kept : all;
}

// An agent that is there twice is one whose old connection has died without telling us: it keeps
// its place, or a round would be formed without it.
Member* State::find_again(Peer peer, const Node& node, TimePoint now) {
  Member* known = roster_.find(node);
  if (known == nullptr || known->peer == peer) return roster_.find(peer);
  const std::string why = "came back over a new connection";
  // Nor is a job that saves and ends broken up: the others save without it.
  if (phase_ == Phase::Verdict || preempting_ || roster_.find(peer) != nullptr) {
    depart(known->peer, why, now, Loss::Closed);
    return roster_.find(peer);
  }
  if (phase_ == Phase::Running && takes_part(known->state)) {
    const auto kind = Cause::Kind::NodeLost;
    restart({.kind = kind, .node = node.id, .text = departed_text(*known, kind, why)}, now);
  }
  roster_.rebind(*known, peer);
  return known;
}

Member* State::meet(Peer peer, const Node& node, const PreviousWorld& previous, TimePoint now) {
  rank_claims_.drop(peer, node);
  Member* known = find_again(peer, node, now);
  if (is_too_late(peer, previous) || (known == nullptr && !admit(peer, node, previous)))
    return nullptr;
  if (roster_.empty() && phase_ == Phase::Joining) begin_join_phase(now);
  learn(previous);
  std::erase_if(gone_, [&node](const Gone& gone) { return gone.node.id == node.id; });
  // Whatever was feared of it is settled; another coordinator's world has one less to wait for.
  const std::string name = agent_name(node);
  unable_.forget(node);
  world_fence_.fence.release(name);
  const WorldId& world = world_fence_.fence.world_of(name, previous.id);
  world_fence_.fence.hear(name, world, now, now + rules_.silence + node.grace);
  return known != nullptr ? known : &roster_.add(peer, node, false, now);
}

void State::join(Peer peer, Node node, const PreviousWorld& previous, TimePoint now) {
  if (!node.unable.empty()) return hear_unable(peer, node, previous, now);
  node.last_rank = previous.group_rank;
  const bool is_new = roster_.find(node) == nullptr && roster_.find(peer) == nullptr;
  Member* member = meet(peer, node, previous, now);
  if (member == nullptr) return tell_unable(now);
  if (member->state == MemberState::Renewing) {
    return come_back_in_role(*member, std::move(node), now);
  }
  if (!is_new) {
    come_back(*member, std::move(node), now);
    if (Member* back = roster_.find(peer)) take_memory(*back, now);
    return;
  }
  take_memory(*member, now);
  const WorldId world = world_fence_.fence.world_of(agent_name(member->node), previous.id);
  if (phase_ == Phase::Joining && world.round > 0) {
    world_fence_.broken(world, agent_name(member->node));
    if (world.is_same(past_.last())) roster_.set_returning(*member, true);
  }
  advance(now);
}

void State::arrive_stopping(Peer peer, const Node& node, const PreviousWorld& previous,
                            Duration left, TimePoint now) {
  Member* member = meet(peer, node, previous, now);
  if (member == nullptr) return rank_claims_.drop(peer);  // no claim while its group is at work
  roster_.move(*member, MemberState::Stopping, now);
  member->world = previous.id;
  stopping(peer, left, now);
  advance(now);
}

void State::hear_of(const PreviousWorld& world, Duration grace, TimePoint now) {
  // What an elected coordinator has to fear stands in the register.
  if (rules_.hosted || !past_.is_news(world.id)) return;
  learn(world);
  world_fence_.fence.begin(now, now + rules_.silence + grace);
}

void State::stopping(Peer peer, Duration left, TimePoint now) {
  Member* member = roster_.find(peer);
  if (member == nullptr) return;
  const bool renews = member->state == MemberState::Renewing && !member->back;
  if (member->state != MemberState::Stopping && !renews) return;
  member->knows_stop = true;
  member->stops_by = now + left;
  if (renews) return roles_.extend(member->node.role, member->stops_by + rules_.join_timeout);
  if (world_fence_.is_last(member->world)) return join_phase_.extend(member->stops_by);
  // Of a world that was not given out here: no round begins beside it, but those who wait have no
  // more time for that.
  world_fence_.fence.hold(agent_name(member->node), peer, member->stops_by, false);
}

// A former member hears how its job has ended; a new node, that it has come too late.
bool State::is_too_late(Peer peer, const PreviousWorld& previous) {
  if (past_.is_concluded(previous.id)) {
    tell(peer, conclusion_);
    return true;
  }
  if (phase_ != Phase::Ended) return false;
  Done done = verdict_;
  if (!done.failed && previous.id.round == 0) {
    done = {true, {.kind = Cause::Kind::Closed}};
    done.cause.text = already_over_text(run_id_);
  }
  tell(peer, std::move(done));
  unable_.tell_others(1);
  return true;
}

// Two nodes that claim one fixed rank are a mistake, unless the first one has died unnoticed.
bool State::admit(Peer peer, const Node& node, const PreviousWorld& previous) {
  if (!rules_.fixed_ranks) return true;
  if (node.node_rank < 0 || node.node_rank >= rules_.max_nodes) {
    tell(peer, Lost{rank_out_of_range_text(node, rules_.max_nodes), false});
    return false;
  }
  if (const Member* owner = roster_.with_node_rank(node.node_rank)) {
    const Quorum there = quorum();
    tell(peer,
         Progress{rank_awaited_text(owner->node), there.returning + there.fresh, rules_.min_nodes});
    rank_claims_.add({peer, node, previous});
    return false;
  }
  return true;
}

bool State::hear(Peer peer, TimePoint now) {
  if (rank_claims_.empty()) return false;
  if (const Member* owner = roster_.find(peer)) {
    for (const auto& claim : rank_claims_.take(owner->node.node_rank))
      tell(claim.peer, Lost{rank_taken_text(claim.node, owner->node), false});
  }
  admit_claimants(now);
  return true;
}

void State::admit_claimants(TimePoint now) {
  for (auto& claim : rank_claims_.take_free(roster_))
    join(claim.peer, std::move(claim.node), claim.previous, now);
}

void State::learn(const PreviousWorld& previous) {
  // The last coordinator may have told only some members of a restart: it is spent all the same.
  restart_rule_.learn(previous.attempt);
  if (!past_.learn(previous, phase_ != Phase::Joining)) return;
  // An agent remembers more than we do: another coordinator was here before us.
  roster_.forget_returning();
  if (!rules_.hosted) world_fence_.fence.expect(previous.id, previous.nodes, 0);
}

void State::come_back(Member& member, Node node, TimePoint now) {
  const MemberState before = member.state;
  // A fixed rank is a promise; a new one now would leave a hole or a rival.
  if (rules_.fixed_ranks) node.node_rank = member.node.node_rank;
  if (before == MemberState::Waiting) {
    roster_.describe(member, std::move(node));
    return advance(now);
  }
  // Only the verdict is missing, and that reaches it over this connection.
  if (before == MemberState::Failed) return;
  if (before != MemberState::Stopping && phase_ == Phase::Running) {
    // It left its group by its own will: the others cannot go on without it, nor wait for nothing.
    restart({.kind = Cause::Kind::NodeLeft, .node = node.id, .text = rejoined_text(node)}, now);
  }
  if (member.state != MemberState::Stopping) return;
  world_fence_.broken(member.world, agent_name(member.node));
  roster_.describe(member, std::move(node));
  roster_.move(member, MemberState::Waiting, now);
  // Too late for its place.
  if (phase_ != Phase::Joining || !member.world.is_same(past_.last()))
    roster_.set_returning(member, false);
  advance(now);
}

void State::started(Peer peer, std::int64_t round) {
  Member* member = roster_.find(peer);
  if (member != nullptr && round == round_number() && member->state == MemberState::Running) {
    member->started = true;
  }
}

void State::fail(Peer peer, std::int64_t round, Cause cause, TimePoint now, bool goes_on) {
  Member* member = roster_.find(peer);
  if (member == nullptr || round != round_number() || member->state != MemberState::Running) return;
  const Member* alone = may_restart_alone(*member, goes_on);
  if (!goes_on) {  // the others of its group are being stopped
    member->knows_stop = true;
    member->stops_by = now + member->node.grace;
    // Where its role alone stops the world is at work.
    if (alone == nullptr) world_fence_.lost_member(member->world, member->stops_by);
  }
  if (phase_ == Phase::Verdict) {
    roster_.move(*member, MemberState::Failed, now);
    return finish_if_all_done(now);
  }
  if (phase_ != Phase::Running) return;
  if (preempting_) {  // it has saved, or has been stopped by what asked for that
    roster_.move(*member, MemberState::Failed, now);
    return finish_if_all_done(now);
  }
  // Whatever kind the sender names: a failure report spends a restart.
  cause.kind = Cause::Kind::WorkerFailed;
  if (restart(cause, now, alone)) return;
  cause.rule = decision_.rule, cause.hopeless = decision_.hopeless;
  roster_.move(*member, MemberState::Failed, now);
  verdict_ = {true, std::move(cause)};
  phase_ = Phase::Verdict;
  verdict_at_ = now + rules_.verdict_window;
  finish_if_all_done(now);
}

void State::succeed(Peer peer, std::int64_t round, TimePoint now) {
  Member* member = roster_.find(peer);
  if (member == nullptr || round != round_number() || member->state != MemberState::Running) return;
  if (roles_.world() && roles_.world()->is_divided()) {
    // What has ended is its role's; the others are at work.
    world_fence_.fence.ended(agent_name(member->node), member->world);
  } else {
    world_fence_.broken(member->world, agent_name(member->node));
  }
  roster_.move(*member, MemberState::Finished, now);
  ending_ = true;  // a job that is ending is not stopped for newcomers
  growth_at_.reset();
  finish_if_all_done(now);
}

void State::leave(Peer peer, const std::string& why, TimePoint now, Duration grace,
                  Cause::Kind kind) {
  const Member* member = roster_.find(peer);
  if (member == nullptr) {
    rank_claims_.drop(peer);
    // Another coordinator told it to stop, and it has not joined here: it has no name yet.
    const std::string name = fmt::format("peer {}", peer);
    if (grace > Duration::zero()) world_fence_.fence.hold(name, peer, now + grace, false);
    return;
  }
  if (member->state == MemberState::Finished) {
    world_fence_.broken(member->world, agent_name(member->node));
  } else if (member->state != MemberState::Waiting) {
    const TimePoint until = now + std::max(grace, member->node.grace);
    const bool of_last_world = world_fence_.is_last(member->world);
    world_fence_.fence.hold(agent_name(member->node), peer, until, of_last_world);
    world_fence_.lost_member(member->world, until);
  }
  remove(*member,
         {.kind = kind, .node = member->node.id, .text = departed_text(*member, kind, why)}, now);
  admit_claimants(now);
}

void State::depart(Peer peer, const std::string& why, TimePoint now, Loss loss) {
  const Member* member = roster_.find(peer);
  if (member == nullptr) {
    rank_claims_.drop(peer);
    unable_.drop(peer);
    // One that had said goodbye. If its connection is merely broken, only time tells.
    if (loss == Loss::Closed) world_fence_.fence.shorten(peer, now + kTimeToReturn);
    if (loss == Loss::Ended && !world_fence_.left(peer)) return;
    return advance(now);
  }
  const auto kind = Cause::Kind::NodeLost;
  fence_off(*member, now, loss);
  remove(*member,
         {.kind = kind, .node = member->node.id, .text = departed_text(*member, kind, why)}, now);
  admit_claimants(now);
}

void State::remove(const Member& member, const Cause& cause, TimePoint now) {
  const MemberState state = member.state;
  // For the status alone; bounded, since nodes may come and go for weeks.
  constexpr std::size_t kMostGone = 16;
  if (gone_.size() == kMostGone) gone_.erase(gone_.begin());
  gone_.push_back({member.node, cause.text, now});
  roster_.remove(member.peer);
  if (phase_ == Phase::Ended) return;
  if (preempting_ && phase_ == Phase::Running) return finish_if_all_done(now);
  const bool runs = state == MemberState::Running || state == MemberState::Renewing;
  if (phase_ == Phase::Running && runs) return void(restart(cause, now));
  // One that had finished has done its part, and was not the last: that one would have ended the
  // job.
  if (phase_ == Phase::Verdict) return finish_if_all_done(now);
  advance(now);
}

// For how long the group of a member that was lost may be at work.
void State::fence_off(const Member& member, TimePoint now, Loss loss) {
  if (member.state == MemberState::Waiting) return;
  if (member.state == MemberState::Finished || loss == Loss::Ended || member.back) {
    world_fence_.fence.release(agent_name(member.node));
    return world_fence_.broken(member.world, agent_name(member.node));
  }
  const TimePoint back_by = now + kTimeToReturn;
  world_fence_.lost_member(
      member.world, loss == Loss::Closed ? back_by : now + rules_.reaction + member.node.grace);
  std::optional<TimePoint> until;
  if (loss != Loss::Silent) until = back_by;
  // The others that come back tell of their own roles alone.
  if (loss != Loss::Closed && !has_companion(member))
    until = now + rules_.reaction + member.node.grace;
  // It was told to stop, and has heard that: it may be saving for as long as it has said.
  if (loss != Loss::Closed && member.knows_stop) until = std::max(until, {member.stops_by});
  if (!until) return;
  world_fence_.fence.hold(agent_name(member.node), member.peer, *until,
                          world_fence_.is_last(member.world));
}

void State::close(const std::string& why, TimePoint now) {
  if (phase_ == Phase::Ended) return;
  Cause cause{.kind = Cause::Kind::Closed};
  cause.text = why;
  end({true, std::move(cause)}, now);
}

void State::suspend(const std::string& why, TimePoint now) {
  if (phase_ != Phase::Running) return;
  restart({.kind = Cause::Kind::CoordinatorLost, .text = why}, now);
}

void State::inherit(const PreviousWorld& previous, TimePoint until, const MemberFence& fence,
                    const WorldId& at_work, std::int64_t highest) {
  learn(previous);
  past_.raise(highest);
  world_fence_.inherited(at_work.round > 0 ? at_work : previous.id, until);
  world_fence_.fence = fence;
}

void State::disinherit(Duration left, TimePoint now) {
  world_fence_.disinherited();
  // It is not at work any more, but members that are cut off may be saving.
  world_fence_.fence.begin(now, now + left);
  if (phase_ == Phase::Joining) advance(now);
}

void State::conclude(const WorldId& last, Done verdict) {
  past_.conclude(last);
  conclusion_ = std::move(verdict);
}

void State::acknowledge(const WorldRecord& record, TimePoint now) {
  world_fence_.acknowledge(record);
  if (phase_ == Phase::Joining) advance(now);
}

Remnant State::remnant(TimePoint now) const {
  Remnant left{0, {}, past_.last()};
  for (const auto& [peer, member] : roster_.all()) {
    if (member.state == MemberState::Waiting && !member.returning) continue;
    ++left.members;
    if (member.back) continue;
    const bool stopping =
        member.state == MemberState::Stopping || member.state == MemberState::Renewing;
    if (!stopping && member.state != MemberState::Running) continue;
    const bool knows = stopping && member.knows_stop;  // the others find out when we are silent
    left.at_work.add({1, knows ? member.stops_by : now + rules_.silence + member.node.grace});
  }
  return left;
}

void State::hold(bool held, TimePoint now) {
  world_fence_.hold(held);
  if (!held && phase_ != Phase::Ended) advance(now);
}

void State::tick(TimePoint now) {
  if (phase_ == Phase::Verdict && verdict_at_ && now >= *verdict_at_) return end(verdict_, now);
  if (phase_ == Phase::Joining || phase_ == Phase::Running) advance(now);
  tell_unable(now);
}

std::optional<TimePoint> State::deadline() const {
  if (phase_ == Phase::Verdict) return verdict_at_;
  if (phase_ == Phase::Running) {
    const auto due = preempting_ ? std::nullopt : roles_.deadline(world_fence_.held());
    return due && growth_at_ ? std::min(due, growth_at_) : due ? due : growth_at_;
  }
  if (phase_ == Phase::Ended) return unable_.until();
  if (roster_.empty()) return std::nullopt;
  const Quorum there = quorum();
  TimePoint given_up = join_phase_.given_up(rules_, there);
  // What is overdue must not wake us again and again while something else is waited for.
  TimePoint due = join_phase_.deadline(rules_, there);
  if (const auto limit = world_fence_.limit()) {
    if (there.returning + there.fresh >= rules_.min_nodes)
      given_up = std::max(given_up, world_fence_.fence.limit().value_or(given_up));
    due = std::min(*limit, given_up);
  }
  if (not_before_) due = *not_before_;
  if (world_fence_.held() || unacknowledged_)
    due = std::max(given_up, record_by_.value_or(given_up));
  return std::min(due, progress_at_);
}

}  // namespace elastrun::rendezvous
