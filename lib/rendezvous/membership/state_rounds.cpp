// SPDX-License-Identifier: Apache-2.0
// How rounds begin and end. Facts come in through state.cpp.
#include "rendezvous/membership/state.hpp"
#include "rendezvous/membership/topology_order.hpp"
#include "rendezvous/membership/wording.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace elastrun::rendezvous {
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
  phase_ = Phase::Joining;
  growth_at_.reset();
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
  const bool cleared = !world_fence_.held() && !world_fence_.is_up(now) && !not_before_;
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
  cause.text = unacknowledged_ ? unrecorded_text(rules_)
                               : join_timeout_text(rules_, quorum(), world_fence_, hosts, now);
  if (!unable_.latest().empty()) cause.text += "; " + unable_.latest();
  end({true, std::move(cause)}, now);
}

void State::push_progress(TimePoint now) {
  progress_at_ = now + rules_.progress_interval;
  const Quorum there = quorum();
  const auto hosts = waiting_hosts_text(roster_);
  Progress progress{unacknowledged_
                        ? recording_text(there)
                        : progress_text(rules_, there, join_phase_, world_fence_, hosts, now),
                    there.returning + there.fresh, std::max(rules_.min_nodes, 1)};
  if (!unable_.latest().empty()) progress.text += "; " + unable_.latest();
  tell_all(roster_.with(MemberState::Waiting), std::move(progress));
}

// A job that runs, or has run, goes on without it, or waits for another one in its place.
void State::hear_unable(Peer peer, const Node& node, const PreviousWorld& previous, TimePoint now) {
  if (is_too_late(peer, previous)) return tell_unable(now);
  Cause cause{.kind = Cause::Kind::Closed, .node = node.id};
  cause.text = unable_text(node.id, node.unable);
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

void State::tell_unable(TimePoint now) {
  if (!unable_.are_waiting()) return;
  for (const Peer peer : unable_.take(rules_, now)) tell(peer, verdict_);
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

RankOrder State::rank_order() const {
  if (rules_.fixed_ranks) return RankOrder::Fixed;
  return rules_.rank_order_topology ? RankOrder::Topology : RankOrder::Torchrun;
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
  World world =
      make_world(std::move(nodes), rank_order(), master_addr_, master_port_, roles_.own());
  if (misses_role(world, now)) return;
  // Above all numbers that any agent has told of, so that late words of an old round fit no new
  // one.
  world.id = {epoch_, past_.highest() + 1};
  world.spent = world.all.attempt = restart_rule_.spent();
  world.left = restart_rule_.left();
  for (auto& [role, meeting] : world.own) meeting.attempt = world.spent;
  WorldRecord record{world.id, static_cast<int>(chosen.size()), world.all.address, world.all.port};
  record.members = names_of(chosen);
  record.local = std::ranges::all_of(chosen, [](const Member* each) { return each->node.local; });
  for (const Member* member : chosen)
    // How long it may run without this coordinator: members notice the silence, and then stop.
    record.at_work = std::max(record.at_work, rules_.silence + member->node.grace);
  if (!world_fence_.is_acknowledged(record)) {
    unacknowledged_ = std::move(record);
    return;
  }
  give_out(chosen, std::move(world), now);
}

void State::give_out(const std::vector<Member*>& chosen, World world, TimePoint now) {
  for (Member* member : chosen) {
    roster_.move(*member, MemberState::Running, now);
    member->started = member->knows_stop = member->back = false;
    member->world = world.id;
  }
  for (Member* spare : roster_.with(MemberState::Waiting)) spare->told_ahead = -1;  // of this world
  past_.formed(world.id, static_cast<int>(chosen.size()));
  const auto shared = std::make_shared<const World>(std::move(world));
  for (std::size_t i = 0; i < shared->members.size(); ++i) {
    Member* member = roster_.find(shared->members[i]);
    member->node.last_rank = static_cast<int>(i);
    deliveries_.push_back({member->peer, Assigned{shared, static_cast<int>(i)}});
  }
  if (rules_.rank_order_topology) last_members_ = shared->members;
  if (roles_.are_any()) roles_.formed(shared);
  ending_ = false;
  roster_.forget_returning();
  unacknowledged_.reset(), record_by_.reset();
  world_fence_.formed(past_.last());
  phase_ = Phase::Running;
  dismiss_stuck();
  advance_running(now);
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
  // A job that saves and ends starts nothing.
  if (roles_.deadline(false) && !preempting_) advance_roles(now);
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
      members < rules_.max_nodes && !rules_.fixed_ranks && !ending_ && !preempting_ &&
      !world_fence_.held();
  if (!grows) {
    growth_at_.reset();
    return tell_spares();
  }
  if (!growth_at_) growth_at_ = now + rules_.growth_delay;
  // No point in collecting more than there are places.
  if (members + waiting < rules_.max_nodes && now < *growth_at_) return;
  const Member* first = roster_.with(MemberState::Waiting).front();
  Cause cause{.kind = Cause::Kind::NodeJoined, .node = first->node.id};
  cause.text = joined_text(first->node, waiting);
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
  roles_.broken_up();
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
  phase_ = Phase::Ended;
  growth_at_.reset(), verdict_at_.reset();
  unacknowledged_.reset(), record_by_.reset();  // no world of it is to be given out
  const auto shared = std::make_shared<const Push>(verdict_);
  for (const auto& [peer, member] : roster_.all()) deliveries_.push_back({peer, shared});
  for (const auto& claim : rank_claims_.take_all()) deliveries_.push_back({claim.peer, shared});
}

}  // namespace elastrun::rendezvous
