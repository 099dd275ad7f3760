// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/roster.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {
namespace {

std::string agent_key(const Node& node) {
  return node.id + '#' + node.instance;
}

template <class Map>
void forget(Map& map, const typename Map::key_type& key, Peer peer) {
  const auto found = map.find(key);
  if (found != map.end() && found->second == peer) map.erase(found);
}

}  // namespace

std::string_view seat_name(Seat seat) {
  switch (seat) {
    case Seat::Waiting:
      return "waiting";
    case Seat::Running:
      return "running";
    case Seat::Finished:
      return "finished";
    case Seat::Failed:
      return "failed";
    case Seat::Stopping:
      return "stopping";
  }
  return "unknown";
}

void Roster::tally(const Attendee& attendee, int sign) {
  counts_[static_cast<std::size_t>(attendee.seat)] += sign;
  if (attendee.seat == Seat::Waiting && attendee.returning) returning_ += sign;
}

Attendee& Roster::add(Peer peer, Node node, bool returning, TimePoint now) {
  Attendee& attendee = attendees_[peer];
  attendee.peer = peer;
  describe(attendee, std::move(node));
  attendee.returning = returning;
  attendee.arrival = ++arrivals_;
  attendee.since = now;
  tally(attendee, +1);
  return attendee;
}

void Roster::describe(Attendee& attendee, Node node) {
  forget(by_agent_, agent_key(attendee.node), attendee.peer);
  forget(by_node_rank_, attendee.node.node_rank, attendee.peer);
  attendee.node = std::move(node);
  by_agent_[agent_key(attendee.node)] = attendee.peer;
  if (attendee.node.node_rank >= 0) by_node_rank_[attendee.node.node_rank] = attendee.peer;
}

void Roster::remove(Peer peer) {
  const auto found = attendees_.find(peer);
  if (found == attendees_.end()) return;
  tally(found->second, -1);
  forget(by_agent_, agent_key(found->second.node), peer);
  forget(by_node_rank_, found->second.node.node_rank, peer);
  attendees_.erase(found);
}

void Roster::move(Attendee& attendee, Seat seat, TimePoint now) {
  tally(attendee, -1);
  // Who was in the round and comes back keeps its seat; everybody else starts as a newcomer.
  attendee.returning = seat == Seat::Waiting && attendee.seat != Seat::Waiting;
  attendee.seat = seat;
  attendee.since = now;
  attendee.told_ahead = -1;
  tally(attendee, +1);
}

void Roster::forget_returning() {
  for (auto& [peer, attendee] : attendees_) attendee.returning = false;
  returning_ = 0;
}

Attendee* Roster::find(Peer peer) {
  const auto found = attendees_.find(peer);
  return found == attendees_.end() ? nullptr : &found->second;
}

Attendee* Roster::find(const Node& node) {
  const auto found = by_agent_.find(agent_key(node));
  return found == by_agent_.end() ? nullptr : find(found->second);
}

Attendee* Roster::with_node_rank(int node_rank) {
  const auto found = by_node_rank_.find(node_rank);
  return found == by_node_rank_.end() ? nullptr : find(found->second);
}

std::vector<Attendee*> Roster::with(Seat seat) {
  std::vector<Attendee*> found;
  found.reserve(static_cast<std::size_t>(count(seat)));
  for (auto& [peer, attendee] : attendees_) {
    if (attendee.seat == seat) found.push_back(&attendee);
  }
  std::ranges::sort(found, {}, &Attendee::arrival);
  return found;
}

}  // namespace elastrun::rendezvous
