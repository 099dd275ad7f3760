// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/membership/state.hpp"

#include "core/text.hpp"
#include "rendezvous/membership/wording.hpp"
#include "rendezvous/membership/world.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <set>
#include <utility>

namespace elastrun::rendezvous {
namespace {

std::string rejoined_text(const Node& node) {
  return fmt::format("node {} wants to start again", node.id);
}

std::string departed_text(const Member& member, Cause::Kind kind, const std::string& why) {
  const bool left = kind == Cause::Kind::NodeLeft;
  const std::string rank =
      member.node.node_rank >= 0 ? fmt::format(" (node rank {})", member.node.node_rank) : "";
  return fmt::format("node {}{} {}{}{}", member.node.id, rank, left ? "has left" : "was lost",
                     why.empty() ? "" : ": ", why);
}

/// Of --rdzv-conf, under which its user finds join_timeout.
std::string_view limit_key(const Rules& rules) {
  return rules.fixed_ranks ? "timeout" : "join_timeout";
}

std::string stuck_text(const Rules& rules) {
  return fmt::format(
      "this node did not stop its workers and come back within {} ({}); the others have gone on "
      "without it",
      format_duration(rules.join_timeout), limit_key(rules));
}

/// No agent has that role; `there` are those of the agents.
std::string missing_role_text(const std::string& role, const std::vector<std::string>& there) {
  return fmt::format(
      "--role-restart {}=own: no agent of this job has that role, only {}; start agents with "
      "--role {}, or correct the name",
      printable(role), printable(join(there, ", ")), printable(role));
}

/// The hosts of the nodes that wait, " (node1, node2)"; of many the first. Empty if none is known.
std::string waiting_hosts_text(Roster& roster) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> hosts;
  for (const auto* member : roster.with(MemberState::Waiting)) {
    const auto& node = member->node;
    if (const auto& name = node.host.empty() ? node.address : node.host; !name.empty()) {
      hosts.push_back(name);
    }
  }
  if (hosts.empty()) return {};
  const bool more = hosts.size() > kShown;
  hosts.resize(std::min(hosts.size(), kShown));
  return fmt::format(" ({}{})", join(hosts, ", "), more ? ", .." : "");
}

std::string join_timeout_text(const Rules& rules, const Quorum& there,
                              const WorldFence& world_fence, const std::string& hosts,
                              TimePoint now) {
  if (world_fence.is_up(now) && there.returning + there.fresh >= rules.min_nodes) {
    return fmt::format("none of the {} of the last round came within {} ({})",
                       nodes_text(there.previous_size), format_duration(rules.join_timeout),
                       limit_key(rules));
  }
  return fmt::format("{}{} of at least {} came within {} ({})",
                     nodes_text(there.returning + there.fresh), hosts, rules.min_nodes,
                     format_duration(rules.join_timeout), limit_key(rules));
}

/// As AgreedRules::role_restart has them.
OwnRoles own_roles(std::string_view names) {
  OwnRoles own;
  for (auto& name : split(names, ',')) {
    if (!name.empty()) own.insert(std::move(name));
  }
  return own;
}

}  // namespace

State::State(Rules rules, std::string run_id, std::string master_addr, std::uint16_t master_port)
    : rules_(rules),
      run_id_(std::move(run_id)),
      master_addr_(std::move(master_addr)),
      master_port_(master_port),
      restart_rule_(restart_settings(rules, run_id_)),
      own_roles_(own_roles(rules.role_restart)),
      preemption_(rules.preempt_ack_all) {}

void State::on(Peer peer, const Leaving& said, TimePoint now) {
  // Before it leaves: afterwards it is not a member any more, and its reason is lost.
  if (said.unable) cannot_start(peer, said.why, now);
  const auto kind = said.killed ? Cause::Kind::NodeLost : Cause::Kind::NodeLeft;
  leave(peer, said.why, now, said.grace, kind);
  gone(peer, now);
}

// Also of a job without preemption: new checkpoints count for its restarts.
void State::on(Peer peer, const Reached& said, TimePoint now) {
  if (said.checkpoint >= 0) saved(said.checkpoint);
  preemption_.says(peer, said, now);
  if (!said.failure.empty() && preemption_.is_asked()) preempting(preemption_.cause(), now);
}

void State::on(Peer peer, const AskPreempt& said, TimePoint now) {
  // Without its coordinator the round would end as well.
  if (!said.hosts && let_spare_go(peer, said.why, now)) return;
  if (preemption_.ask(said.why, said.deadline, now)) preempting(preemption_.cause(), now);
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
  std::erase_if(claims_, [&, name = agent_name(node)](const Claim& claim) {
    return claim.peer == peer || agent_name(claim.node) == name;
  });
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
  if (member == nullptr) return drop_claims(peer);  // no claim while its group is at work
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
  if (renews) {
    if (const auto role = renewals_.find(member->node.role); role != renewals_.end()) {
      TimePoint& until = role->second.until;
      until = std::max<TimePoint>(until, member->stops_by + rules_.join_timeout);
    }
    return;
  }
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
    done.cause.text =
        fmt::format("the job \"{}\" is already over; start it under another --rdzv-id", run_id_);
  }
  tell(peer, std::move(done));
  unable_.tell_others(1);
  return true;
}

// Two nodes that claim one fixed rank are a mistake, unless the first one has died unnoticed.
bool State::admit(Peer peer, const Node& node, const PreviousWorld& previous) {
  if (!rules_.fixed_ranks) return true;
  if (node.node_rank < 0 || node.node_rank >= rules_.max_nodes) {
    tell(peer, Lost{fmt::format("--node-rank {} of {} is not one of the {} nodes of this job: give "
                                "each node a rank from 0 to {}",
                                node.node_rank, node.id, rules_.max_nodes, rules_.max_nodes - 1)});
    return false;
  }
  if (const Member* owner = roster_.with_node_rank(node.node_rank)) {
    const Quorum there = quorum();
    tell(peer, Progress{fmt::format("node rank {} is that of {}; waiting until that is heard, or "
                                    "found dead",
                                    owner->node.node_rank, owner->node.id),
                        there.returning + there.fresh, rules_.min_nodes});
    claims_.push_back({peer, node, previous});
    return false;
  }
  return true;
}

bool State::hear(Peer peer, TimePoint now) {
  if (claims_.empty()) return false;
  if (const Member* owner = roster_.find(peer)) {
    std::erase_if(claims_, [&](const Claim& claim) {
      if (claim.node.node_rank != owner->node.node_rank) return false;
      tell(claim.peer, Lost{fmt::format("--node-rank {} is already taken by {}: give each node a "
                                        "different rank",
                                        claim.node.node_rank, owner->node.id)});
      return true;
    });
  }
  admit_claimants(now);
  return true;
}

void State::admit_claimants(TimePoint now) {
  const auto free = std::ranges::stable_partition(claims_, [this](const Claim& claim) {
    return roster_.with_node_rank(claim.node.node_rank) != nullptr;
  });
  const std::vector<Claim> admitted(free.begin(), free.end());
  claims_.erase(free.begin(), free.end());
  for (const Claim& claim : admitted) join(claim.peer, claim.node, claim.previous, now);
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

void State::started(Peer peer, std::int64_t round, TimePoint now) {
  Member* member = roster_.find(peer);
  if (member != nullptr && round == round_number() && member->state == MemberState::Running) {
    member->started = true;
  }
  standstill_.started(peer, round, now);
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
  // Whatever kind the sender names: a failure report spends a restart.
  cause.kind = Cause::Kind::WorkerFailed;
  if (phase_ == Phase::Verdict) {
    cause.rule = decision_.rule, cause.hopeless = decision_.hopeless;
    if (verdict_.cause.blames_peer && !cause.blames_peer) verdict_.cause = std::move(cause);
    roster_.move(*member, MemberState::Failed, now);
    return finish_if_all_done(now);
  }
  if (phase_ != Phase::Running) return;
  if (preempting_) {  // it has saved, or has been stopped by what asked for that
    roster_.move(*member, MemberState::Failed, now);
    return finish_if_all_done(now);
  }
  if (cause.blames_peer && !goes_on && alone == nullptr) {
    if (!victim_) victim_ = {peer, std::move(cause), now + rules_.culprit_wait};
    const bool others_run = std::ranges::any_of(roster_.all(), [](const auto& each) {
      return each.second.state == MemberState::Running && !each.second.knows_stop;
    });
    return others_run ? void() : name_victim(now);
  }
  decide(peer, std::move(cause), now, victim_ ? nullptr : alone);
}

void State::decide(Peer failed, Cause cause, TimePoint now, const Member* alone) {
  victim_.reset();  // it is `cause`, or a better one has come
  if (restart(cause, now, alone)) return;
  cause.rule = decision_.rule, cause.hopeless = decision_.hopeless;
  for (auto& [peer, member] : roster_.all()) {
    if (member.state == MemberState::Running && (member.knows_stop || peer == failed))
      roster_.move(member, MemberState::Failed, now);
  }
  verdict_ = {true, std::move(cause)};
  enter(Phase::Verdict);
  verdict_at_ = now + rules_.verdict_window;
  finish_if_all_done(now);
}

void State::succeed(Peer peer, std::int64_t round, TimePoint now) {
  Member* member = roster_.find(peer);
  if (member == nullptr || round != round_number() || member->state != MemberState::Running) return;
  if (world_ && world_->is_divided()) {
    // What has ended is its role's; the others are at work.
    world_fence_.fence.ended(agent_name(member->node), member->world);
  } else {
    world_fence_.broken(member->world, agent_name(member->node));
  }
  roster_.move(*member, MemberState::Finished, now);
  ending_ = true;  // a job that is ending is not stopped for newcomers
  growth_at_.reset();
  finish_if_all_done(now);
  standstill_.finished(peer, now);
}

void State::leave(Peer peer, const std::string& why, TimePoint now, Duration grace,
                  Cause::Kind kind) {
  const Member* member = roster_.find(peer);
  if (member == nullptr) {
    drop_claims(peer);
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
    drop_claims(peer);
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
  // Its agent goes because of that failure, which no other one can follow now.
  if (victim_ && victim_->peer == member.peer) name_victim(now);
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

void State::inherit(const InheritedWorld& world) {
  learn(world.previous);
  past_.raise(world.highest);
  world_fence_.inherited(world.at_work.round > 0 ? world.at_work : world.previous.id, world.until);
  world_fence_.fence = world.fence;
}

std::optional<InheritedWorld> State::left_behind(TimePoint now) const {
  if (!world_fence_.is_up(now)) return std::nullopt;
  // By its own name, whatever higher number others have told of. The first who is back proves that
  // it has broken up; the others may be saving.
  const PreviousWorld last{past_.last(), 0, past_.last_size()};
  InheritedWorld left{last, *world_fence_.limit(), world_fence_.fence, world_fence_.world(),
                      past_.highest()};
  left.fence.expect_rest(last.id, last.nodes);
  return left;
}

void State::disinherit(Duration left, TimePoint now) {
  world_fence_.disinherited();
  // It is not at work any more, but members that are cut off may be saving.
  world_fence_.fence.begin(now, now + left);
  if (phase_ == Phase::Joining) advance(now);
}

Survivors State::survivors(TimePoint now) const {
  Survivors left{0, {}, past_.last()};
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

void State::tick(TimePoint now) {
  if (phase_ == Phase::Verdict && verdict_at_ && now >= *verdict_at_) {
    end(verdict_, now);
  } else {
    advance(now);
    tell_unable(now);
  }
  standstill_.tick(now);
  preemption_.tick(now);
  end_if_saved(now);
}

std::optional<TimePoint> State::deadline() const {
  auto due = round_due();
  for (const auto& other : {standstill_.deadline(), preemption_.deadline()})
    if (other) due = std::min(due.value_or(*other), *other);
  return due;
}

std::optional<TimePoint> State::round_due() const {
  if (phase_ == Phase::Verdict) return verdict_at_;
  if (phase_ == Phase::Running) {
    auto first = growth_at_;
    const auto earlier = [&](TimePoint due) { first = std::min(first.value_or(due), due); };
    if (victim_) earlier(victim_->until);
    for (const auto& [role, renewal] : renewals_) {
      // While held, what is ready must not wake the caller again and again.
      const bool waits = renewal.missing > 0 || held_;
      if (!preempting_) earlier(waits ? renewal.until : renewal.not_before);
    }
    return first;
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
  if (held_ || unacknowledged_) due = std::max(given_up, record_by_.value_or(given_up));
  return std::min(due, progress_at_);
}

// How rounds begin and end.

namespace {

// The longest wait for a register that renews an election but records nothing (etcd out of space),
// once join_timeout is over.
constexpr auto kTimeToRecord = std::chrono::seconds(30);

// Those of a larger world would make its record too long.
constexpr std::size_t kMostNames = 64, kLongestShownName = 64;

std::vector<std::string> names_of(const std::vector<Member*>& members) {
  if (members.size() > kMostNames) return {};
  std::vector<std::string> names;
  for (const Member* member : members) {
    names.push_back(agent_name(member->node));
    if (names.back().size() > kLongestShownName) return {};
  }
  return names;
}

}  // namespace

void State::advance(TimePoint now) {
  now_ = now;
  if (phase_ == Phase::Joining) {
    advance_join_phase(now);
  } else if (phase_ == Phase::Running) {
    advance_running(now);
  }
}

void State::begin_join_phase(TimePoint now) {
  enter(Phase::Joining);
  growth_at_.reset(), victim_.reset();
  unacknowledged_.reset(), record_by_.reset();
  join_phase_.begin(now);
  // The first word comes early: a person who waits wants to know at once for whom.
  progress_at_ = now + std::min<Duration>(rules_.progress_interval, std::chrono::seconds(1));
}

void State::advance_join_phase(TimePoint now) {
  unacknowledged_.reset();
  if (roster_.empty()) return;
  const Quorum there = quorum();
  join_phase_.update(rules_, there, now);
  world_fence_.pass(now);
  if (not_before_ && now >= *not_before_) not_before_.reset();
  const bool cleared = !held_ && !world_fence_.is_up(now) && !not_before_;
  if (cleared && join_phase_.may_close(rules_, there, now)) {
    try_to_close_round(now);
    if (!unacknowledged_) return;
    await_record(now);
  } else {
    record_by_.reset();
  }
  // Those who are too few gain nothing from the end of another world.
  const bool fenced = there.returning + there.fresh >= rules_.min_nodes &&
                      world_fence_.fence_limit(now).has_value();
  if (join_phase_.timed_out(rules_, there, now) && !fenced && now >= record_by_.value_or(now)) {
    return give_up_waiting(now);
  }
  if (now >= progress_at_) push_progress(now);
}

// As a rule for some milliseconds, too short to be logged.
void State::await_record(TimePoint now) {
  if (record_by_) return;
  record_by_ = now + kTimeToRecord;
  progress_at_ = std::max<TimePoint>(progress_at_, now + std::chrono::seconds(1));
}

void State::give_up_waiting(TimePoint now) {
  Cause cause{.kind = Cause::Kind::Timeout};
  const auto hosts = waiting_hosts_text(roster_);
  cause.text =
      unacknowledged_
          ? fmt::format(
                "enough nodes came, but within {} (join_timeout) that could not be recorded",
                format_duration(rules_.join_timeout))
      : held_ ? fmt::format("the coordinator could not renew its election within {} ({})",
                            format_duration(rules_.join_timeout), limit_key(rules_))
              : join_timeout_text(rules_, quorum(), world_fence_, hosts, now);
  if (!unable_.latest().empty()) cause.text += "; " + unable_.latest();
  end({true, std::move(cause)}, now);
}

void State::push_progress(TimePoint now) {
  progress_at_ = now + rules_.progress_interval;
  const Quorum there = quorum();
  const auto hosts = waiting_hosts_text(roster_);
  Progress progress{
      unacknowledged_ ? nodes_text(there.returning + there.fresh) +
                            " here, enough to start; waiting until that is recorded"
                      : progress_text(rules_, there, join_phase_, world_fence_, held_, hosts, now),
      there.returning + there.fresh, std::max(rules_.min_nodes, 1)};
  if (!unable_.latest().empty()) progress.text += "; " + unable_.latest();
  tell_all(roster_.with(MemberState::Waiting), std::move(progress));
}

// A job that runs, or has run, goes on without it, or waits for another one in its place.
void State::hear_unable(Peer peer, const Node& node, const PreviousWorld& previous, TimePoint now) {
  if (is_too_late(peer, previous)) return tell_unable(now);
  Cause cause{.kind = Cause::Kind::Closed, .node = node.id};
  cause.text = fmt::format("node {} cannot start its workers: {}", node.id, node.unable);
  unable_.add(node, cause.text);
  const bool has_run = phase_ != Phase::Joining || past_.highest() > 0;
  if (has_run || unable_.leave_enough(rules_, roster_.size())) {
    tell(peer, Lost{cause.text + "; the others have been told", false});
    return push_progress(now);
  }
  unable_.wait(peer, (roster_.empty() ? now : join_phase_.since()) + rules_.join_timeout);
  unable_.tell_others(roster_.size());
  end({true, std::move(cause)}, now);
  tell_unable(now);
}

void State::cannot_start(Peer peer, const std::string& why, TimePoint now) {
  const Member* member = roster_.find(peer);
  if (member == nullptr || member->state != MemberState::Running || phase_ != Phase::Running)
    return;
  Cause cause{.kind = Cause::Kind::Closed, .node = member->node.id};
  cause.text = departed_text(*member, Cause::Kind::NodeLeft, why);
  unable_.add(member->node, cause.text);
  const bool enough = unable_.leave_enough(rules_, roster_.size() - 1);
  if (round_number() == 1 && !enough) end({true, std::move(cause)}, now);
}

// Members of the round before keep their places; free places go to the others, first come first,
// or by topology.
std::vector<Member*> State::choose_members() {
  std::vector<Member*> waiting = roster_.with(MemberState::Waiting);
  std::ranges::stable_partition(waiting, &Member::returning);
  auto end = waiting.end();  // of those that are not left out
  if (restart_rule_.may_exclude() && !rules_.fixed_ranks) {
    const auto out = std::ranges::stable_partition(
        waiting, [this](const Member* member) { return !is_left_out(*member, now_); });
    end = out.begin();
  }
  const auto spares =
      std::find_if(waiting.begin(), end, [](const Member* member) { return !member->returning; });
  const auto places = static_cast<std::size_t>(rules_.max_nodes);
  const bool has_choice = static_cast<std::size_t>(end - waiting.begin()) > places;
  if (rules_.rank_order_topology && has_choice)
    order_spares({waiting.begin(), spares}, {spares, end});
  // The others are needed where there are too few without them.
  if (end - waiting.begin() >= rules_.min_nodes) waiting.erase(end, waiting.end());
  if (waiting.size() > places) waiting.resize(places);
  return waiting;
}

// A coordinator that has not given out the last round does not know whom it has lost: then those
// come first that are near to the ones that are left.
void State::order_spares(std::span<Member* const> kept, std::span<Member*> spares) {
  std::vector<const Node*> stay, lost, offered;
  std::set<std::string> names;
  for (const Member* member : kept) {
    stay.push_back(&member->node);
    names.insert(agent_name(member->node));
  }
  for (const Node& node : last_members_) {
    if (!names.contains(agent_name(node))) lost.push_back(&node);
  }
  for (const Member* member : spares) offered.push_back(&member->node);
  const std::vector<Member*> arrived(spares.begin(), spares.end());
  const auto order = nearest_first(lost.empty() ? stay : lost, offered);
  for (std::size_t i = 0; i < order.size(); ++i) spares[i] = arrived[order[i]];
}

void State::try_to_close_round(TimePoint now) {
  const std::vector<Member*> chosen = choose_members();
  std::vector<Node> nodes;
  nodes.reserve(chosen.size());
  for (const Member* member : chosen) {
    nodes.push_back(member->node);
    if (!member->returning) nodes.back().last_rank = -1;  // of a round before the last one
  }
  replace_loopback(nodes, reachable_);
  World world = make_world(std::move(nodes), rank_order(), master_addr_, master_port_, own_roles_);
  if (misses_role(world, now)) return;
  // Above all numbers that any agent has told of, so that late words of an old round fit no new
  // one.
  world.id = {epoch_, past_.highest() + 1};
  world.spent = world.all.attempt = restart_rule_.spent();
  world.left = restart_rule_.left();
  for (auto& [role, meeting] : world.own) meeting.attempt = world.spent;
  WorldRecord record{world.id, static_cast<int>(chosen.size()), world.all.master_addr,
                     world.all.master_port};
  record.members = names_of(chosen);
  record.local = std::ranges::all_of(chosen, [](const Member* each) { return each->node.local; });
  for (const Member* member : chosen)
    // How long it may run without this coordinator: members notice the silence, and then stop.
    record.at_work = std::max(record.at_work, rules_.silence + member->node.grace);
  if (acknowledged_ && *acknowledged_ != record) {
    unacknowledged_ = std::move(record);
    return;
  }
  give_out(chosen, std::move(world), now);
}

void State::give_out(const std::vector<Member*>& chosen, World world, TimePoint now) {
  for (Member* member : chosen) {
    roster_.move(*member, MemberState::Running, now);
    member->world = world.id;
  }
  for (Member* spare : roster_.with(MemberState::Waiting)) spare->told_ahead = -1;  // of this world
  past_.formed(world.id, static_cast<int>(chosen.size()));
  const auto shared = std::make_shared<const World>(std::move(world));
  for (std::size_t i = 0; i < shared->members.size(); ++i) {
    Member* member = roster_.find(shared->members[i]);
    member->node.last_rank = static_cast<int>(i);
    assign(*member, shared, static_cast<int>(i));
  }
  if (rules_.rank_order_topology) last_members_ = shared->members;
  if (!own_roles_.empty()) world_ = shared;
  ending_ = false;
  roster_.forget_returning();
  unacknowledged_.reset(), record_by_.reset();
  world_fence_.formed(past_.last());
  enter(Phase::Running);
  dismiss_stuck();
  advance_running(now);
}

void State::assign(Member& member, const std::shared_ptr<const World>& world, int group_rank) {
  member.started = member.knows_stop = member.back = false;
  deliveries_.push_back({member.peer, Assigned{world, group_rank}});
  const auto at = static_cast<std::size_t>(group_rank);
  standstill_.assigned(member.peer, world->id.round, world->members[at],
                       world->ranks.of[at].rank_base);
  preemption_.assigned(member.peer, world->id.round, group_rank);
}

// Agents that did not come back within join_timeout although they are there: were their places
// kept, every later round would wait for them again.
void State::dismiss_stuck() {
  for (const Member* member : roster_.with(MemberState::Stopping)) {
    const Peer peer = member->peer;
    tell(peer, Lost{stuck_text(rules_), true});
    roster_.remove(peer);
  }
}

void State::advance_running(TimePoint now) {
  if (victim_ && now >= victim_->until) return name_victim(now);
  // A job that saves and ends starts nothing.
  if (!preempting_) advance_roles(now);
  if (phase_ != Phase::Running) return;
  const int waiting = waiting_for_places();
  if (waiting == 0) {
    growth_at_.reset();
    return tell_spares();
  }
  const int members = roster_.count(MemberState::Running) + roster_.count(MemberState::Finished) +
                      roster_.count(MemberState::Renewing);
  const bool grows =
      // Not while held: another leader may decide, and this one could not form the larger world.
      members < rules_.max_nodes && !rules_.fixed_ranks && !ending_ && !preempting_ && !held_ &&
      !victim_;
  if (!grows) {
    growth_at_.reset();
    return tell_spares();
  }
  if (!growth_at_) growth_at_ = now + rules_.growth_delay;
  // No point in collecting more than there are places.
  if (members + waiting < rules_.max_nodes && now < *growth_at_) return;
  const Member* first = roster_.with(MemberState::Waiting).front();
  Cause cause{.kind = Cause::Kind::NodeJoined, .node = first->node.id};
  cause.text = waiting == 1
                   ? fmt::format("node {} has joined", first->node.id)
                   : fmt::format("node {} and {} more have joined", first->node.id, waiting - 1);
  restart(cause, now);
}

void State::tell_spares() {
  if (roster_.count(MemberState::Waiting) == 0) return;
  int ahead = 0;
  for (Member* member : roster_.with(MemberState::Waiting)) {
    if (member->told_ahead != ahead) tell(member->peer, Spare{ahead, last_world()});
    member->told_ahead = ahead++;
  }
}

// Breaks the round up, if the job goes on after that; whether it does. `alone`: its role stops, and
// the round goes on.
bool State::restart(Cause cause, TimePoint now, const Member* alone) {
  now_ = now;
  if (preempting_) {  // what has broken it up has ended the saving, too
    preempted(preempting_->text, now);
    return true;
  }
  const RestartDecision decision = decision_ = decide_restart(cause, now);
  cause.rule = decision.rule, cause.hopeless = decision.hopeless;
  if (!decision.restarts) {
    if (cause.kind == Cause::Kind::WorkerFailed) return false;
    end({true, std::move(cause)}, now);  // a rule is about nodes that go
    return true;
  }
  // A node that is left out from now on gives its place to another one.
  if (alone != nullptr && !decision.excluded) {
    restart_role(*alone, std::move(cause), decision, now);
  } else {
    break_up(std::move(cause), decision, now);
  }
  return true;
}

void State::break_up(Cause cause, const RestartDecision& decision, TimePoint now) {
  std::vector<Member*> members;
  for (auto& [peer, member] : roster_.all()) {
    if (member.state == MemberState::Running || member.state == MemberState::Finished)
      members.push_back(&member);
    if (member.state != MemberState::Renewing) continue;
    // It has been told to stop and to join: that will do, whenever this join comes, or came.
    const bool back = std::exchange(member.back, false);
    roster_.move(member, back ? MemberState::Waiting : MemberState::Stopping, now);
  }
  renewals_.clear(), world_.reset();
  for (Member* member : members) {
    // One that has failed stops already, and has said for how long.
    if (!member->knows_stop) member->stops_by = now + rules_.reaction + member->node.grace;
    roster_.move(*member, MemberState::Stopping, now);
  }
  tell_all(members, Restart{cause, decision.attempt_spent, decision.restarts_left, decision.delay,
                            restart_rule_.carried_memory(now)});
  ending_ = false;
  begin_join_phase(now);
  not_before_.reset();
  if (decision.delay > Duration::zero()) {
    not_before_ = now + decision.delay;
    join_phase_.stand_still(decision.delay);  // nothing is late meanwhile
  }
  // Also those who came while this round ran, and may be saving for longer than its members.
  for (const auto& [peer, member] : roster_.all()) {
    if (member.state == MemberState::Stopping) join_phase_.extend(member.stops_by);
  }
  advance(now);
}

void State::finish_if_all_done(TimePoint now) {
  if (roster_.count(MemberState::Running) > 0) return;
  const bool goes_on = phase_ == Phase::Running && !preempting_;
  if (goes_on && roster_.count(MemberState::Renewing) > 0) return;
  if (phase_ == Phase::Verdict) return end(verdict_, now);
  end(preempting_ ? Done{true, *preempting_} : Done{}, now);
}

void State::end(Done verdict, TimePoint now) {
  verdict_ = std::move(verdict);
  verdict_.memory = restart_rule_.carried_memory(now);
  verdict_.restarts_left = restart_rule_.left();
  enter(Phase::Ended);
  growth_at_.reset(), verdict_at_.reset(), victim_.reset();
  unacknowledged_.reset(), record_by_.reset();  // no world of it is to be given out
  const auto shared = std::make_shared<const Push>(verdict_);
  for (const auto& [peer, member] : roster_.all()) deliveries_.push_back({peer, shared});
  for (const auto& claim : std::exchange(claims_, {})) deliveries_.push_back({claim.peer, shared});
}

// How one role starts again in a round that goes on.

// The member itself, or null. A group that hangs and goes on hangs with all others.
const Member* State::may_restart_alone(const Member& member, bool goes_on) const {
  if (!world_ || goes_on || phase_ != Phase::Running || preempting_) return nullptr;
  const auto here = std::ranges::count_if(roster_.all(), [&](const auto& each) {
    const Member& other = each.second;
    return other.node.role == member.node.role && other.world.is_same(member.world) &&
           (other.state == MemberState::Running || other.state == MemberState::Finished);
  });
  const auto meeting = world_->own.find(member.node.role);
  // One that has finished and gone leaves a rank that nothing would start again.
  const bool all_here = meeting != world_->own.end() && meeting->second.store_nodes == here;
  return all_here && !renewals_.contains(member.node.role) ? &member : nullptr;
}

void State::restart_role(const Member& first, Cause cause, const RestartDecision& decision,
                         TimePoint now) {
  const std::string role = first.node.role;
  Renewal renewal{cause, decision, 0, now + decision.delay, now};
  std::vector<Member*> all;
  for (auto& [peer, member] : roster_.all()) {
    if (!takes_part(member.state)) continue;
    all.push_back(&member);
    if (member.node.role != role) continue;
    if (!member.knows_stop) member.stops_by = now + rules_.reaction + member.node.grace;
    roster_.move(member, MemberState::Renewing, now);
    member.started = member.back = false;
    // Until its role runs again it neither hangs nor saves, and is not waited for.
    standstill_.renews(peer);
    preemption_.gone(peer, now);
    ++renewal.missing;
    renewal.until = std::max(renewal.until, member.stops_by);
  }
  renewal.until += rules_.join_timeout + decision.delay;
  ending_ = roster_.count(MemberState::Finished) > 0;
  renewals_[role] = std::move(renewal);
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
  const auto renewal = renewals_.find(role);
  if (!was_back && renewal != renewals_.end()) --renewal->second.missing;
  advance(now);
}

void State::advance_roles(TimePoint now) {
  const auto is_ready = [&](const auto& each) {
    return each.second.missing <= 0 && now >= each.second.not_before && !held_;
  };
  const auto late = std::ranges::find_if(
      renewals_, [&](const auto& each) { return !is_ready(each) && now >= each.second.until; });
  if (late != renewals_.end()) {
    Cause cause{.kind = Cause::Kind::Timeout};
    cause.text = fmt::format(
        "the nodes with the role {} did not all stop their workers and come back within {} "
        "(join_timeout)",
        late->first, format_duration(rules_.join_timeout));
    return give_role_up(late->first, std::move(cause), now);
  }
  while (phase_ == Phase::Running) {
    const auto ready = std::ranges::find_if(renewals_, is_ready);
    if (ready == renewals_.end()) return;
    start_role_again(std::string(ready->first), now);
  }
}

void State::start_role_again(const std::string& role, TimePoint now) {
  const Renewal renewal = renewals_.at(role);
  std::vector<Node> nodes = world_->members;
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
  World again =
      start_again(*world_, role, std::move(nodes), renewal.decision.attempt_spent, attempt());
  again.left = restart_rule_.left();
  world_ = std::make_shared<const World>(std::move(again));
  renewals_.erase(role);
  for (const auto& [member, group_rank] : members) {
    roster_.move(*member, MemberState::Running, now);
    world_fence_.fence.resumed(agent_name(member->node));
    assign(*member, world_, group_rank);
  }
}

// A name that no agent has would leave a job without the restarts that it was to have.
bool State::misses_role(const World& world, TimePoint now) {
  // Of a job that may grow the nodes of that role may be those that come later.
  const bool is_whole = static_cast<int>(world.members.size()) >= rules_.max_nodes;
  if (own_roles_.empty() || !is_whole || past_.highest() > 0) return false;
  std::set<std::string> there;
  for (const auto& [peer, member] : roster_.all()) there.insert(member.node.role);
  const auto missing =
      std::ranges::find_if(own_roles_, [&](const auto& name) { return !there.contains(name); });
  if (missing == own_roles_.end()) return false;
  Cause cause{.kind = Cause::Kind::Closed};
  cause.text = missing_role_text(*missing, {there.begin(), there.end()});
  cause.misuse = true;
  end({true, std::move(cause)}, now);
  return true;
}

// Whether the end of another one's group says that this one's has ended: they work together.
bool State::has_companion(const Member& member) const {
  if (own_roles_.empty()) return true;
  const auto unit_of = [this](const Member& one) {
    return own_roles_.contains(one.node.role) ? std::string_view(one.node.role) : "";
  };
  return std::ranges::any_of(roster_.all(), [&](const auto& each) {
    const Member& other = each.second;
    return &other != &member && other.world.is_same(member.world) &&
           unit_of(other) == unit_of(member);
  });
}

// What the restart policy and a preemption add to rounds.

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
  name_victim(now);
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

}  // namespace elastrun::rendezvous
