// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/round.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// One agent's connection, numbered by the state's driver. Never used twice.
using Peer = std::uint64_t;

/// What an agent is doing, as far as the job is concerned.
enum class MemberState {
  Waiting,   // has joined, belongs to no live round
  Running,   // member of the round, its group runs or is being started
  Finished,  // member of the round, all of its workers have succeeded
  Failed,    // member of the round, a worker has failed and the job is about to end
  Stopping,  // was a member, was told to stop, has not joined again; its place is kept
  Renewing,  // member of the round, in which its role alone starts again
};
constexpr std::size_t kMemberStates = 6;
/// Named for status and pages.
constexpr std::array<std::string_view, kMemberStates> kMemberStateNames = {
    "waiting", "running", "finished", "failed", "stopping", "renewing"};
constexpr std::string_view member_state_name(MemberState state) {
  return kMemberStateNames[static_cast<std::size_t>(state)];
}
/// In a round that no failure has ended: a restart of it concerns such members.
constexpr bool takes_part(MemberState state) {
  return state == MemberState::Running || state == MemberState::Finished ||
         state == MemberState::Renewing;
}

/// By which an agent is known again, over whichever connection and under whichever address it
/// comes.
inline std::string agent_name(const Node& node) {
  return node.instance.empty() ? node.id : node.instance;
}

/// One agent in the job.
struct Member {
  Peer peer = 0;
  Node node;
  MemberState state = MemberState::Waiting;
  bool returning = false;  // was in the round before: has its place before all newcomers
  int told_ahead = -1;     // its place among the spares, as it was told last; -1: not at all
  bool started = false;    // its workers run
  WorldId world;           // it was in last
  // Stopping, Renewing: it knows that; by when its group has ended, by its own word if it knows.
  bool knows_stop = false;
  TimePoint stops_by;
  bool back = false;  // Renewing: it has joined again
  std::uint64_t arrival = 0;
  TimePoint since;  // of this state
};

/// Who is there, with counts that cost nothing to ask. Holds no rules.
class Roster {
 public:
  Roster() = default;
  Roster(const Roster&) = delete;  // the index points to the members, which moving leaves alone
  Roster& operator=(const Roster&) = delete;
  Roster(Roster&&) = default;
  Roster& operator=(Roster&&) = default;

  Member& add(Peer peer, Node node, bool returning, TimePoint now) {
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
  void remove(Peer peer) {
    const auto found = members_.find(peer);
    if (found == members_.end()) return;
    tally(found->second, -1);
    forget(found->second);
    members_.erase(found);
  }
  /// It is heard over another connection from now on.
  void rebind(Member& member, Peer peer) {
    auto moved = members_.extract(member.peer);  // which stays where it is in memory
    moved.key() = member.peer = peer;
    members_.insert(std::move(moved));
    member.told_ahead = -1;
    if (const auto rank = by_node_rank_.find(member.node.node_rank); rank != by_node_rank_.end()) {
      rank->second = peer;
    }
  }
  void move(Member& member, MemberState state, TimePoint now) {
    tally(member, -1);
    // Who was in the round and comes back keeps its place; any other member starts as a newcomer.
    member.returning = state == MemberState::Waiting && member.state != MemberState::Waiting;
    member.state = state;
    member.since = now;
    member.told_ahead = -1;
    tally(member, +1);
  }
  /// Replaces its description, perhaps with another name.
  void describe(Member& member, Node node) {
    // As a rule it comes back as it was: nothing is to be found under another name.
    const bool same = SameAgent()(node, &member) && member.node.node_rank == node.node_rank;
    if (!same) forget(member);
    member.node = std::move(node);
    if (!same) index(member);
  }
  /// Waiting members count as newcomers again.
  void forget_returning() {
    for (auto& [peer, member] : members_) member.returning = false;
    returning_ = 0;
  }
  void set_returning(Member& member, bool returning) {
    tally(member, -1);
    member.returning = returning;
    tally(member, +1);
  }

  Member* find(Peer peer) {
    const auto found = members_.find(peer);
    return found == members_.end() ? nullptr : &found->second;
  }
  /// The member that is this very agent (same id and instance), or null.
  Member* find(const Node& node) {
    const auto found = by_agent_.find(node);
    return found == by_agent_.end() ? nullptr : *found;
  }
  /// The one with this given node rank, or null.
  Member* with_node_rank(int node_rank) {
    const auto found = by_node_rank_.find(node_rank);
    return found == by_node_rank_.end() ? nullptr : find(found->second);
  }
  int count(MemberState state) const { return counts_[static_cast<std::size_t>(state)]; }
  /// Of those waiting, the ones that were in the round before.
  int returning() const { return returning_; }
  int size() const { return static_cast<int>(members_.size()); }
  bool empty() const { return members_.empty(); }
  /// Those in this state, first come first. Costs a sort.
  std::vector<Member*> with(MemberState state) {
    std::vector<Member*> found;
    found.reserve(static_cast<std::size_t>(count(state)));
    for (auto& [peer, member] : members_) {
      if (member.state == state) found.push_back(&member);
    }
    // The map is by connection, and who has connected again has come first all the same.
    std::ranges::sort(found, {}, &Member::arrival);
    return found;
  }
  const std::unordered_map<Peer, Member>& all() const { return members_; }
  std::unordered_map<Peer, Member>& all() { return members_; }

 private:
  // An agent is known by id and instance. The index holds no copy of these texts: thousands of
  // agents come back at once, and each look at memory that is far away costs more than the rest.
  struct HashOfAgent {
    using is_transparent = void;
    std::size_t operator()(const Node& node) const {
      const std::hash<std::string_view> hash;
      return hash(node.id) * 31 + hash(node.instance);
    }
    std::size_t operator()(const Member* member) const { return (*this)(member->node); }
  };
  struct SameAgent {
    using is_transparent = void;
    bool operator()(const Member* left, const Member* right) const { return left == right; }
    bool operator()(const Node& node, const Member* member) const {
      return node.id == member->node.id && node.instance == member->node.instance;
    }
    bool operator()(const Member* member, const Node& node) const { return (*this)(node, member); }
  };

  // The one that came last is found by its names, where two have the same.
  void index(Member& member) {
    if (const auto twin = by_agent_.find(member.node); twin != by_agent_.end()) {
      by_agent_.erase(twin);
    }
    by_agent_.insert(&member);
    if (member.node.node_rank >= 0) by_node_rank_[member.node.node_rank] = member.peer;
  }
  void forget(Member& member) {
    by_agent_.erase(&member);
    const auto rank = by_node_rank_.find(member.node.node_rank);
    if (rank != by_node_rank_.end() && rank->second == member.peer) by_node_rank_.erase(rank);
  }
  void tally(const Member& member, int sign) {
    counts_[static_cast<std::size_t>(member.state)] += sign;
    if (member.state == MemberState::Waiting && member.returning) returning_ += sign;
  }

  std::unordered_map<Peer, Member> members_;
  std::unordered_set<Member*, HashOfAgent, SameAgent> by_agent_;
  std::unordered_map<int, Peer> by_node_rank_;
  std::array<int, kMemberStates> counts_{};
  int returning_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace elastrun::rendezvous
