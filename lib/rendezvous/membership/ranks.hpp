// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/round.hpp"

#include <vector>

namespace elastrun::rendezvous {

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
