// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/ranks.hpp"

#include "core/text.hpp"
#include "rendezvous/membership/topology_order.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace elastrun::rendezvous {
namespace {

using Key = std::tuple<std::string_view, std::int64_t, std::int64_t, std::string_view>;

// The address itself may hold underscores, so the id is read from its end.
Key key_of(const Node& node) {
  const std::string_view id = node.id, instance = node.instance;
  const auto last = id.rfind('_');
  if (last == std::string_view::npos || last == 0) return {id, -1, -1, instance};
  const auto middle = id.rfind('_', last - 1);
  if (middle == std::string_view::npos) return {id, -1, -1, instance};
  const auto pid = parse_int(id.substr(middle + 1, last - middle - 1));
  const auto serial = parse_int(id.substr(last + 1));
  if (!pid || !serial) return {id, -1, -1, instance};
  return {id.substr(0, middle), *pid, *serial, instance};
}

}  // namespace

bool comes_before(const Node& left, const Node& right) {
  return key_of(left) < key_of(right);
}

void sort_members(std::vector<Node>& members, RankOrder rank_order) {
  if (rank_order == RankOrder::Topology) return sort_by_topology(members);
  if (rank_order == RankOrder::Fixed) {
    std::ranges::sort(members, {}, &Node::node_rank);
    return;
  }
  // Each id is taken apart once, not at each comparison: worlds have thousands of nodes. The keys
  // point into the nodes, so these stay where they are until the order is known.
  std::vector<std::pair<Key, std::size_t>> order;
  order.reserve(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) order.emplace_back(key_of(members[i]), i);
  std::ranges::sort(order);
  std::vector<Node> sorted;
  sorted.reserve(members.size());
  for (const auto& [key, index] : order) sorted.push_back(std::move(members[index]));
  members = std::move(sorted);
}

Ranks compute_ranks(const std::vector<Node>& members) {
  Ranks ranks;
  ranks.of.reserve(members.size());
  std::unordered_map<std::string_view, int> role_sizes;
  for (const Node& node : members) {
    int& role_size = role_sizes[node.role];
    ranks.of.push_back({ranks.world_size, role_size, 0});
    ranks.world_size += node.local_world_size;
    role_size += node.local_world_size;
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    ranks.of[i].role_world_size = role_sizes[members[i].role];
  }
  return ranks;
}

}  // namespace elastrun::rendezvous
