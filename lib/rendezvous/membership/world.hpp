// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// Ranks by topology: where nodes are tells the order. The nodes of a domain, which is one
/// beginning of their addresses (a switch, a block, an NVLink domain), are neighbours. Pure: the
/// same nodes give the same order, in whichever order they came.
namespace elastrun::rendezvous {

/// By address, level for level, in the natural order of names: node2 before node10; then by host.
/// Within its domain a node keeps its `last_rank`, if that is a place of the domain still. So a
/// node that is replaced by one of its domain leaves all others where they are.
void sort_by_topology(std::vector<Node>& members);

/// The places in `spares` in the order in which they are to replace nodes that were at `lost`:
/// first one for each that is nearest to it, then the others; first come, first served.
std::vector<std::size_t> nearest_first(const std::vector<const Node*>& lost,
                                       const std::vector<const Node*>& spares);

/// The ranks of a whole round: one entry per member, by group rank.
struct Ranks {
  std::vector<Bases> of;
  int world_size = 0;
};

/// Means nothing to other machines.
bool is_loopback(std::string_view address);

/// torchrun's order of nodes: the text of the address, then pid and serial number as numbers (then
/// the instance). Ids of another form are ordered as text.
bool comes_before(const Node& left, const Node& right);

/// By what members get their group ranks.
enum class RankOrder {
  Torchrun,  // comes_before
  Fixed,     // node_rank, which must be distinct
  Topology,  // sort_by_topology
};

/// Puts members into the order of their group ranks.
void sort_members(std::vector<Node>& members, RankOrder order);

/// Ranks of sorted members, whose sizes and roles may differ. Linear in their number.
Ranks compute_ranks(const std::vector<Node>& members);

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
