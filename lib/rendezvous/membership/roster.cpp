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

bool Roster::SameAgent::operator()(const Node& node, const Member* member) const {
  return is_same_agent(node, member->node);
}

bool Roster::SameAgent::operator()(const Member* member, const Node& node) const {
  return is_same_agent(node, member->node);
}

bool takes_part(MemberState state) {
  return state == MemberState::Running || state == MemberState::Finished ||
         state == MemberState::Renewing;
}

std::string_view member_state_name(MemberState state) {
  switch (state) {
    case MemberState::Waiting:
      return "waiting";
    case MemberState::Running:
      return "running";
    case MemberState::Finished:
      return "finished";
    case MemberState::Failed:
      return "failed";
    case MemberState::Stopping:
      return "stopping";
    case MemberState::Renewing:
      return "renewing";
  }
  return "unknown";
}

void Roster::tally(const Member& member, int sign) {
  counts_[static_cast<std::size_t>(member.state)] += sign;
  if (member.state == MemberState::Waiting && member.returning) returning_ += sign;
}

Member& Roster::add(Peer peer, Node node, bool returning, TimePoint now) {
  Member& member = members_[peer];
  member.peer = peer;
  member.node = std::move(node);
  index(member);
  member.returning = returning;
  member.arrival = ++arrivals_;
  member.since = now;
  tally(member, +1);
  return member;
}

// The one that came last is found by its names, where two have the same.
void Roster::index(Member& member) {
  if (const auto twin = by_agent_.find(member.node); twin != by_agent_.end()) {
    by_agent_.erase(twin);
  }
  by_agent_.insert(&member);
  if (member.node.node_rank >= 0) by_node_rank_[member.node.node_rank] = member.peer;
}

void Roster::forget(Member& member) {
  by_agent_.erase(&member);
  const auto rank = by_node_rank_.find(member.node.node_rank);
  if (rank != by_node_rank_.end() && rank->second == member.peer) by_node_rank_.erase(rank);
}

void Roster::describe(Member& member, Node node) {
  // As a rule it comes back as it was: nothing is to be found under another name.
  const bool same = is_same_agent(member.node, node) && member.node.node_rank == node.node_rank;
  if (!same) forget(member);
  member.node = std::move(node);
  if (!same) index(member);
}

void Roster::remove(Peer peer) {
  const auto found = members_.find(peer);
  if (found == members_.end()) return;
  tally(found->second, -1);
  forget(found->second);
  members_.erase(found);
}

void Roster::rebind(Member& member, Peer peer) {
  auto moved = members_.extract(member.peer);  // which stays where it is in memory
  moved.key() = member.peer = peer;
  members_.insert(std::move(moved));
  member.told_ahead = -1;
  if (const auto rank = by_node_rank_.find(member.node.node_rank); rank != by_node_rank_.end()) {
    rank->second = peer;
  }
}

void Roster::move(Member& member, MemberState state, TimePoint now) {
  tally(member, -1);
  // Who was in the round and comes back keeps its place; any other member starts as a newcomer.
  member.returning = state == MemberState::Waiting && member.state != MemberState::Waiting;
  member.state = state;
  member.since = now;
  member.told_ahead = -1;
  tally(member, +1);
}

void Roster::forget_returning() {
  for (auto& [peer, member] : members_) member.returning = false;
  returning_ = 0;
}

void Roster::set_returning(Member& member, bool returning) {
  tally(member, -1);
  member.returning = returning;
  tally(member, +1);
}

Member* Roster::find(Peer peer) {
  const auto found = members_.find(peer);
  return found == members_.end() ? nullptr : &found->second;
}

std::string agent_name(const Node& node) {
  return node.instance.empty() ? node.id : node.instance;
}

Member* Roster::find(const Node& node) {
  const auto found = by_agent_.find(node);
  return found == by_agent_.end() ? nullptr : *found;
}

Member* Roster::with_node_rank(int node_rank) {
  const auto found = by_node_rank_.find(node_rank);
  return found == by_node_rank_.end() ? nullptr : find(found->second);
}

std::vector<Member*> Roster::with(MemberState state) {
  std::vector<Member*> found;
  found.reserve(static_cast<std::size_t>(count(state)));
  for (auto& [peer, member] : members_) {
    if (member.state == state) found.push_back(&member);
  }
  // The map is by connection, and who has connected again has come first all the same.
  std::ranges::sort(found, {}, &Member::arrival);
  return found;
}

}  // namespace elastrun::rendezvous
