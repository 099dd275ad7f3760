// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/roster.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {
namespace {

bool is_same_agent(const Node& left, const Node& right) {
  return left.id == right.id && left.instance == right.instance;
}

}  // namespace

std::size_t Roster::HashOfAgent::operator()(const Node& node) const {
  const std::hash<std::string_view> hash;
  return hash(node.id) * 31 + hash(node.instance);
}

bool Roster::SameAgent::operator()(const Node& node, const Attendee* attendee) const {
  return is_same_agent(node, attendee->node);
}

bool Roster::SameAgent::operator()(const Attendee* attendee, const Node& node) const {
  return is_same_agent(node, attendee->node);
}

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
  attendee.node = std::move(node);
  index(attendee);
  attendee.returning = returning;
  attendee.arrival = ++arrivals_;
  attendee.since = now;
  tally(attendee, +1);
  return attendee;
}

// The one that came last is found by its names, where two have the same.
void Roster::index(Attendee& attendee) {
  if (const auto twin = by_agent_.find(attendee.node); twin != by_agent_.end()) {
    by_agent_.erase(twin);
  }
  by_agent_.insert(&attendee);
  if (attendee.node.node_rank >= 0) by_node_rank_[attendee.node.node_rank] = attendee.peer;
}

void Roster::forget(Attendee& attendee) {
  by_agent_.erase(&attendee);
  const auto rank = by_node_rank_.find(attendee.node.node_rank);
  if (rank != by_node_rank_.end() && rank->second == attendee.peer) by_node_rank_.erase(rank);
}

void Roster::describe(Attendee& attendee, Node node) {
  // As a rule it comes back as it was: nothing is to be found under another name.
  const bool same = is_same_agent(attendee.node, node) && attendee.node.node_rank == node.node_rank;
  if (!same) forget(attendee);
  attendee.node = std::move(node);
  if (!same) index(attendee);
}

void Roster::remove(Peer peer) {
  const auto found = attendees_.find(peer);
  if (found == attendees_.end()) return;
  tally(found->second, -1);
  forget(found->second);
  attendees_.erase(found);
}

void Roster::rebind(Attendee& attendee, Peer peer) {
  auto moved = attendees_.extract(attendee.peer);  // which stays where it is in memory
  moved.key() = attendee.peer = peer;
  attendees_.insert(std::move(moved));
  attendee.told_ahead = -1;
  if (const auto rank = by_node_rank_.find(attendee.node.node_rank); rank != by_node_rank_.end()) {
    rank->second = peer;
  }
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

void Roster::set_returning(Attendee& attendee, bool returning) {
  tally(attendee, -1);
  attendee.returning = returning;
  tally(attendee, +1);
}

Attendee* Roster::find(Peer peer) {
  const auto found = attendees_.find(peer);
  return found == attendees_.end() ? nullptr : &found->second;
}

std::string agent_name(const Node& node) {
  return node.instance.empty() ? node.id : node.instance;
}

Attendee* Roster::find(const Node& node) {
  const auto found = by_agent_.find(node);
  return found == by_agent_.end() ? nullptr : *found;
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
