// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/ranks.hpp"
#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace elastrun::rendezvous {

/// A complete round, computed once and shared by all of its members: what differs between them is
/// only the group rank. Never changed after it was made.
struct World {
  WorldId id;
  int attempt = 0;
  std::vector<Node> members;  // by group rank
  Ranks ranks;
  std::string master_addr;
  std::uint16_t master_port = 0;
};

/// Means nothing to other machines.
bool is_loopback(const std::string& address);
/// Gives `reachable`, if there is one, to members on loopback, where other members are not: they
/// sit on the coordinator's machine, and their own address means nothing elsewhere.
void replace_loopback(std::vector<Node>& members, const std::string& reachable);

/// Sorts the members and gives out ranks. The master is `master_addr` and `master_port` where these
/// are set, and the address and store of group rank 0 otherwise.
World make_world(std::vector<Node> members, RankOrder order, std::string master_addr,
                 std::uint16_t master_port);

/// The round as the member with that group rank sees it.
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
