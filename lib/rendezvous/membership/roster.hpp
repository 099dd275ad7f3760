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

/// One agent's connection, numbered by whoever drives the state. Never used twice.
using Peer = std::uint64_t;

/// What an agent is doing, as far as the job is concerned.
enum class Seat {
  Waiting,   // has joined, belongs to no live round
  Running,   // member of the round, its group runs or is being started
  Finished,  // member of the round, all of its workers have succeeded
  Failed,    // member of the round, a worker has failed and the job is about to end
  Stopping,  // was a member, was told to stop, has not joined again; its seat is kept
};
constexpr std::size_t kSeatKinds = 5;
std::string_view seat_name(Seat seat);

/// By which an agent is known again, over whichever connection and under whichever address it
/// comes.
std::string agent_name(const Node& node);

/// One agent in the job.
struct Attendee {
  Peer peer = 0;
  Node node;
  Seat seat = Seat::Waiting;
  bool returning = false;  // was in the round before: has its seat before all newcomers
  int told_ahead = -1;     // its place among the spares, as it was told last; -1: not at all
  bool started = false;    // its workers run
  std::int64_t round = 0;  // it was in last
  // Stopping: it knows that; by when its group has ended, by its own word if it knows.
  bool knows_stop = false;
  TimePoint stops_by;
  std::uint64_t arrival = 0;
  TimePoint since;  // of this seat
};

/// Who is there, with counts that cost nothing to ask. Holds no rules.
class Roster {
 public:
  Roster() = default;
  Roster(const Roster&) = delete;  // the index points to the attendees, which moving leaves alone
  Roster& operator=(const Roster&) = delete;
  Roster(Roster&&) = default;
  Roster& operator=(Roster&&) = default;

  Attendee& add(Peer peer, Node node, bool returning, TimePoint now);
  void remove(Peer peer);
  /// It is heard over another connection from now on.
  void rebind(Attendee& attendee, Peer peer);
  void move(Attendee& attendee, Seat seat, TimePoint now);
  /// It describes itself anew, perhaps under another name.
  void describe(Attendee& attendee, Node node);
  /// Waiting attendees count as newcomers again.
  void forget_returning();
  void set_returning(Attendee& attendee, bool returning);

  Attendee* find(Peer peer);
  /// The attendee that is this very agent (same id and instance), or null.
  Attendee* find(const Node& node);
  /// The one with this given node rank, or null.
  Attendee* with_node_rank(int node_rank);
  int count(Seat seat) const { return counts_[static_cast<std::size_t>(seat)]; }
  /// Of those waiting, the ones that were in the round before.
  int returning() const { return returning_; }
  int size() const { return static_cast<int>(attendees_.size()); }
  bool empty() const { return attendees_.empty(); }
  /// Those with this seat, first come first. Costs a sort.
  std::vector<Attendee*> with(Seat seat);
  const std::unordered_map<Peer, Attendee>& all() const { return attendees_; }
  std::unordered_map<Peer, Attendee>& all() { return attendees_; }

 private:
  // An agent is known by id and instance. The index holds no copy of these texts: thousands of
  // agents come back at once, and each look at memory that is far away costs more than the rest.
  struct HashOfAgent {
    using is_transparent = void;
    std::size_t operator()(const Node& node) const;
    std::size_t operator()(const Attendee* attendee) const { return (*this)(attendee->node); }
  };
  struct SameAgent {
    using is_transparent = void;
    bool operator()(const Attendee* left, const Attendee* right) const { return left == right; }
    bool operator()(const Node& node, const Attendee* attendee) const;
    bool operator()(const Attendee* attendee, const Node& node) const;
  };

  void index(Attendee& attendee);
  void forget(Attendee& attendee);
  void tally(const Attendee& attendee, int sign);

  std::unordered_map<Peer, Attendee> attendees_;
  std::unordered_set<Attendee*, HashOfAgent, SameAgent> by_agent_;
  std::unordered_map<int, Peer> by_node_rank_;
  std::array<int, kSeatKinds> counts_{};
  int returning_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace elastrun::rendezvous
