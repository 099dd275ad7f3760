// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/round.hpp"

#include <cstddef>
#include <string_view>
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

/// Where the workers of one node begin to count, and how many share their role.
struct Bases {
  int rank = 0;
  int role_rank = 0;
  int role_world_size = 0;
  bool operator==(const Bases&) const = default;
};

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

}  // namespace elastrun::rendezvous
