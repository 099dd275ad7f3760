// SPDX-License-Identifier: Apache-2.0
// How rounds begin and end. Facts come in through state.cpp.
#include "rendezvous/membership/state.hpp"
#include "rendezvous/membership/wording.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {

void State::advance(TimePoint now) {
  if (phase_ == Phase::Gathering) {
    advance_gathering(now);
  } else if (phase_ == Phase::Running) {
    advance_running(now);
  }
}

void State::begin_gathering(TimePoint now, TimePoint stopped_by) {
  phase_ = Phase::Gathering;
  growth_at_.reset();
  unlicensed_.reset();
  gathering_.begin(now, stopped_by);
  // The first word comes early: a person who waits wants to know at once for whom.
  progress_at_ = now + std::min<Duration>(rules_.progress_interval, std::chrono::seconds(1));
}

void State::advance_gathering(TimePoint now) {
  if (roster_.empty()) return;
  const Turnout there = turnout();
  gathering_.update(rules_, there, now);
  unlicensed_.reset();
  clearance_.pass(now);
  const bool cleared = !clearance_.held() && !clearance_.in_doubt(now);
  if (cleared && gathering_.may_close(rules_, there, now)) return try_to_close_round(now);
  if (gathering_.timed_out(rules_, there, now) && !clearance_.fence_limit(now)) {
    return give_up_waiting(now);
  }
  if (now >= progress_at_) push_progress(now);
}

void State::give_up_waiting(TimePoint now) {
  Cause cause{.kind = Cause::Kind::Timeout};
  cause.text = join_timeout_text(rules_, turnout(), clearance_, now);
  end({true, std::move(cause)}, now);
}

void State::push_progress(TimePoint now) {
  progress_at_ = now + rules_.progress_interval;
  const Turnout there = turnout();
  Progress progress{progress_text(rules_, there, gathering_, clearance_, now),
                    there.returning + there.fresh, std::max(rules_.min_nodes, 1)};
  tell_all(roster_.with(Seat::Waiting), std::move(progress));
}

// Members of the round before keep their seats; free seats go to the others, first come first.
std::vector<Attendee*> State::choose_members() {
  std::vector<Attendee*> waiting = roster_.with(Seat::Waiting);
  std::ranges::stable_partition(waiting, &Attendee::returning);
  const auto seats = static_cast<std::size_t>(rules_.max_nodes);
  if (waiting.size() > seats) waiting.resize(seats);
  return waiting;
}

void State::try_to_close_round(TimePoint now) {
  const std::vector<Attendee*> chosen = choose_members();
  std::vector<Node> nodes;
  nodes.reserve(chosen.size());
  for (const Attendee* attendee : chosen) nodes.push_back(attendee->node);
  replace_loopback(nodes, reachable_);
  World world = make_world(std::move(nodes), rules_.fixed_ranks, master_addr_, master_port_);
  world.epoch = epoch_;
  world.number = std::max(number_, floor_) + 1;
  world.attempt = budget_.spent();
  WorldNote note{world.number, static_cast<int>(chosen.size()), world.master_addr,
                 world.master_port};
  if (!clearance_.is_licensed(note)) {
    unlicensed_ = std::move(note);
    return;
  }
  seat(chosen, std::move(world), now);
}

void State::seat(const std::vector<Attendee*>& chosen, World world, TimePoint now) {
  for (Attendee* attendee : chosen) {
    roster_.move(*attendee, Seat::Running, now);
    attendee->started = attendee->knows_stop = false;
    attendee->round = world.number;
  }
  for (Attendee* spare : roster_.with(Seat::Waiting)) spare->told_ahead = -1;  // of this world
  number_ = floor_ = world.number;
  const auto shared = std::make_shared<const World>(std::move(world));
  for (std::size_t i = 0; i < shared->members.size(); ++i) {
    const Attendee* member = roster_.find(shared->members[i]);
    deliveries_.push_back({member->peer, Seated{shared, static_cast<int>(i)}});
  }
  previous_size_ = static_cast<int>(chosen.size());
  succession_ = ending_ = false;
  roster_.forget_returning();
  unlicensed_.reset();
  clearance_.formed();
  phase_ = Phase::Running;
  dismiss_stuck();
  advance_running(now);
}

// Agents that did not come back within join_timeout although they are there: were their seats kept,
// every later round would wait for them again.
void State::dismiss_stuck() {
  for (const Attendee* attendee : roster_.with(Seat::Stopping)) {
    const Peer peer = attendee->peer;
    tell(peer, Lost{stuck_text(rules_), true});
    roster_.remove(peer);
  }
}

void State::advance_running(TimePoint now) {
  const int waiting = roster_.count(Seat::Waiting);
  if (waiting == 0) return growth_at_.reset();
  const int members = roster_.count(Seat::Running) + roster_.count(Seat::Finished);
  const bool grows =
      members < rules_.max_nodes && !rules_.fixed_ranks && !ending_ && !clearance_.held();
  if (!grows) {
    growth_at_.reset();
    return tell_spares();
  }
  if (!growth_at_) growth_at_ = now + rules_.growth_delay;
  // No point in collecting more than there are seats.
  if (members + waiting < rules_.max_nodes && now < *growth_at_) return;
  const Attendee* first = roster_.with(Seat::Waiting).front();
  Cause cause{.kind = Cause::Kind::NodeJoined, .node = first->node.id};
  cause.text = joined_text(first->node, waiting);
  break_up(cause, false, now);
}

void State::tell_spares() {
  if (roster_.count(Seat::Waiting) == 0) return;
  int ahead = 0;
  for (Attendee* attendee : roster_.with(Seat::Waiting)) {
    if (attendee->told_ahead != ahead) tell(attendee->peer, Spare{ahead, last_world()});
    attendee->told_ahead = ahead++;
  }
}

void State::break_up(const Cause& cause, bool attempt_spent, TimePoint now) {
  std::vector<Attendee*> members;
  for (auto& [peer, attendee] : roster_.all()) {
    if (attendee.seat == Seat::Running || attendee.seat == Seat::Finished)
      members.push_back(&attendee);
  }
  Duration grace{};
  for (Attendee* member : members) {
    grace = std::max(grace, member->node.grace);
    if (!member->knows_stop) member->stops_by = now + rules_.reaction + member->node.grace;
    roster_.move(*member, Seat::Stopping, now);
  }
  tell_all(members, Restart{cause, attempt_spent, budget_.left()});
  ending_ = false;
  begin_gathering(now, now + rules_.reaction + grace);
  advance(now);
}

}  // namespace elastrun::rendezvous
