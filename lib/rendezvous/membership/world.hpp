// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/ranks.hpp"
#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace elastrun::rendezvous {

/// Where workers that form process groups with each other meet, and how often they have started.
struct Meeting {
  int attempt = 0;
  std::string address;
  std::uint16_t port = 0;
  int store_rank = 0;          // group rank of the node that serves it
  int nodes = 0, workers = 0;  // that meet there
  bool again = false;          // in a round that ran already
};

/// A complete round, computed once and shared by all of its members: what differs between them is
/// only the group rank. Never changed after it was made.
struct World {
  WorldId id;
  int spent = 0, left = 0;    // restarts, of the whole job
  std::vector<Node> members;  // by group rank
  Ranks ranks;
  Meeting all{};  // of all roles that are not in `own`
  /// Of each role that restarts alone. Empty where no other role is there.
  std::map<std::string, Meeting> own{};
  const Meeting& meeting_of(const std::string& role) const;
  bool is_divided() const { return !own.empty(); }
};
using OwnRoles = std::set<std::string>;

/// Gives `reachable`, if there is one, to members on loopback, where other members are not: they
/// sit on the coordinator's machine, and their own address means nothing elsewhere.
void replace_loopback(std::vector<Node>& members, const std::string& reachable);

/// Sorts the members and gives out ranks. The master is `master_addr` and `master_port` where these
/// are set (loopback: if group rank 0 is there, too), else address and store of group rank 0. Each
/// role of `own`, which restarts alone, meets at its first node's store, all others at theirs.
World make_world(std::vector<Node> members, RankOrder order, std::string master_addr,
                 std::uint16_t master_port, const OwnRoles& own = {});
/// The same world, in which `role` starts again: its nodes are described by `members`, which has
/// all of the world in its order.
World start_again(const World& world, const std::string& role, std::vector<Node> members,
                  bool attempt_spent, int spent);

/// The round as the member with that group rank sees it; its place is that without the members.
Round place_of(const World& world, int group_rank);
Round round_of(const World& world, int group_rank);

/// A member's place in a round. The world is shared, not copied, between thousands of members.
struct Assigned {
  std::shared_ptr<const World> world;
  int group_rank = 0;
};
/// What one agent has to be told: its assignment, or something that is the same for all who hear
/// it.
using Notice = std::variant<Assigned, std::shared_ptr<const Push>>;
struct Delivery {
  Peer to = 0;
  Notice notice;
};
Push to_push(const Notice& notice);

}  // namespace elastrun::rendezvous
