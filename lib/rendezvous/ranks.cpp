// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ranks.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace elastrun::rendezvous {
namespace {

using Key = std::tuple<std::string_view, std::int64_t, std::int64_t>;

// The address itself may hold underscores, so the id is read from its end.
Key key_of(std::string_view id) {
  const auto last = id.rfind('_');
  if (last == std::string_view::npos || last == 0) return {id, -1, -1};
  const auto middle = id.rfind('_', last - 1);
  if (middle == std::string_view::npos) return {id, -1, -1};
  const auto pid = parse_int(id.substr(middle + 1, last - middle - 1));
  const auto serial = parse_int(id.substr(last + 1));
  if (!pid || !serial) return {id, -1, -1};
  return {id.substr(0, middle), *pid, *serial};
}

}  // namespace

bool comes_before(const Node& left, const Node& right) {
  return key_of(left.id) < key_of(right.id);
}

void sort_members(std::vector<Node>& members, bool by_node_rank) {
  if (by_node_rank) {
    std::ranges::sort(members, {}, &Node::node_rank);
  } else {
    std::ranges::sort(members, comes_before);
  }
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
