// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/round.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
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
std::string_view member_state_name(MemberState state);
/// In a round that no failure has ended: a restart of it concerns such members.
bool takes_part(MemberState state);

/// By which an agent is known again, over whichever connection and under whichever address it
/// comes.
std::string agent_name(const Node& node);

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

  Member& add(Peer peer, Node node, bool returning, TimePoint now);
  void remove(Peer peer);
  /// It is heard over another connection from now on.
  void rebind(Member& member, Peer peer);
  void move(Member& member, MemberState state, TimePoint now);
  /// Replaces its description, perhaps with another name.
  void describe(Member& member, Node node);
  /// Waiting members count as newcomers again.
  void forget_returning();
  void set_returning(Member& member, bool returning);

  Member* find(Peer peer);
  /// The member that is this very agent (same id and instance), or null.
  Member* find(const Node& node);
  /// The one with this given node rank, or null.
  Member* with_node_rank(int node_rank);
  int count(MemberState state) const { return counts_[static_cast<std::size_t>(state)]; }
  /// Of those waiting, the ones that were in the round before.
  int returning() const { return returning_; }
  int size() const { return static_cast<int>(members_.size()); }
  bool empty() const { return members_.empty(); }
  /// Those in this state, first come first. Costs a sort.
  std::vector<Member*> with(MemberState state);
  const std::unordered_map<Peer, Member>& all() const { return members_; }
  std::unordered_map<Peer, Member>& all() { return members_; }

 private:
  // An agent is known by id and instance. The index holds no copy of these texts: thousands of
  // agents come back at once, and each look at memory that is far away costs more than the rest.
  struct HashOfAgent {
    using is_transparent = void;
    std::size_t operator()(const Node& node) const;
    std::size_t operator()(const Member* member) const { return (*this)(member->node); }
  };
  struct SameAgent {
    using is_transparent = void;
    bool operator()(const Member* left, const Member* right) const { return left == right; }
    bool operator()(const Node& node, const Member* member) const;
    bool operator()(const Member* member, const Node& node) const;
  };

  void index(Member& member);
  void forget(Member& member);
  void tally(const Member& member, int sign);

  std::unordered_map<Peer, Member> members_;
  std::unordered_set<Member*, HashOfAgent, SameAgent> by_agent_;
  std::unordered_map<int, Peer> by_node_rank_;
  std::array<int, kMemberStates> counts_{};
  int returning_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace elastrun::rendezvous
