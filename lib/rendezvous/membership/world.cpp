// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/membership/world.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace elastrun::rendezvous {
namespace {

using Levels = std::vector<std::string>;

/// Outermost first; the innermost is the host, so that an agent that is started again on the
/// machine of one that was lost is nearest of all to it.
Levels levels_of(const Node& node) {
  Levels levels;
  if (!node.topology.empty()) levels = split(node.topology, '.');
  levels.push_back(node.host);
  return levels;
}

std::size_t shared_levels(const Levels& left, const Levels& right) {
  const auto end = std::ranges::mismatch(left, right).in1;
  return static_cast<std::size_t>(end - left.begin());
}

struct Placed {
  Levels levels;
  Node node;
};

bool comes_before_by_place(const Placed& left, const Placed& right) {
  const auto [one, other] = std::ranges::mismatch(left.levels, right.levels);
  if (one == left.levels.end() || other == right.levels.end()) {
    if (left.levels.size() != right.levels.size()) return left.levels.size() < right.levels.size();
    return comes_before(left.node, right.node);
  }
  // Numbers within names as numbers (strverscmp(3)); nothing but equal texts is equal to it, up to
  // a byte of 0, which a host's own word may have.
  const int order = ::strverscmp(one->c_str(), other->c_str());
  return order != 0 ? order < 0 : *one < *other;
}

/// For each place the number of levels that its node has in common with another one's. Neighbours
/// in sorted order have the most in common.
std::vector<Levels> domains_of(const std::vector<Placed>& sorted) {
  std::vector<Levels> domains;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto& own = sorted[i].levels;
    const auto before = i == 0 ? 0 : shared_levels(sorted[i - 1].levels, own);
    const auto after = i + 1 == sorted.size() ? 0 : shared_levels(sorted[i + 1].levels, own);
    const auto most = static_cast<std::ptrdiff_t>(std::max(before, after));
    domains.emplace_back(own.begin(), own.begin() + most);
  }
  return domains;
}

/// The nodes at `places`, which are sorted, may have each other's place: none of them shares more
/// levels with any other node than all of them share.
void keep_ranks(std::vector<Placed>& members, const std::vector<std::size_t>& places) {
  std::map<std::size_t, Placed> kept;
  std::vector<Placed> others;
  for (const std::size_t place : places) {
    const auto last = static_cast<std::size_t>(members[place].node.last_rank);  // -1: beyond all
    // What agents say of themselves: two may claim one rank.
    const bool keeps = std::ranges::binary_search(places, last) && !kept.contains(last);
    auto& one = keeps ? kept[last] : others.emplace_back();
    one = std::move(members[place]);
  }
  auto next = others.begin();
  for (const std::size_t place : places)
    members[place] = std::move(kept.contains(place) ? kept[place] : *next++);
}

}  // namespace

void sort_by_topology(std::vector<Node>& members) {
  std::vector<Placed> sorted;
  sorted.reserve(members.size());
  for (Node& node : members) {
    auto levels = levels_of(node);
    sorted.push_back({std::move(levels), std::move(node)});
  }
  std::ranges::sort(sorted, comes_before_by_place);
  std::map<Levels, std::vector<std::size_t>> places;
  const auto domains = domains_of(sorted);
  for (std::size_t i = 0; i < sorted.size(); ++i) places[domains[i]].push_back(i);
  for (const auto& [domain, of_it] : places) keep_ranks(sorted, of_it);
  for (std::size_t i = 0; i < sorted.size(); ++i) members[i] = std::move(sorted[i].node);
}

std::vector<std::size_t> nearest_first(const std::vector<const Node*>& lost,
                                       const std::vector<const Node*>& spares) {
  std::vector<Levels> wanted, offered;
  for (const Node* node : lost) wanted.push_back(levels_of(*node));
  for (const Node* node : spares) offered.push_back(levels_of(*node));
  std::size_t deepest = 0;
  for (const auto& levels : wanted) deepest = std::max(deepest, levels.size());
  std::vector<std::size_t> order;
  std::vector<bool> taken(spares.size());
  // From the whole address to its first level: a spare that is near to one must not be taken for
  // another one before that.
  for (auto depth = deepest; depth > 0; --depth) {
    const auto beginning = [depth](const Levels& levels) {
      return Levels(levels.begin(), levels.begin() + static_cast<std::ptrdiff_t>(depth));
    };
    std::multimap<Levels, std::size_t> open;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].size() >= depth) open.emplace(beginning(wanted[i]), i);
    }
    for (std::size_t i = 0; i < offered.size(); ++i) {
      if (taken[i] || offered[i].size() < depth) continue;
      const auto found = open.find(beginning(offered[i]));
      if (found == open.end()) continue;
      wanted[found->second].clear();  // has its spare
      open.erase(found);
      taken[i] = true;
      order.push_back(i);
    }
  }
  for (std::size_t i = 0; i < spares.size(); ++i) {
    if (!taken[i]) order.push_back(i);
  }
  return order;
}

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
  const auto address = id.substr(0, middle);
  // The host of the rendezvous came over its loopback: it has the rank that its real name gives.
  const bool unnamed = is_loopback(address) && !node.address.empty();
  return {unnamed ? std::string_view(node.address) : address, *pid, *serial, instance};
}

}  // namespace

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

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

void replace_loopback(std::vector<Node>& members, const std::string& reachable) {
  if (reachable.empty()) return;
  const auto local = [](const Node& node) { return is_loopback(node.address); };
  // All on one machine: its loopback needs no route and no firewall's consent.
  if (std::ranges::all_of(members, local)) return;
  for (Node& node : members) {
    if (local(node)) node.address = reachable;
  }
}

const Meeting& World::meeting_of(const std::string& role) const {
  const auto found = own.find(role);
  return found != own.end() ? found->second : all;
}

namespace {

/// Whose workers meet apart from each other. The first node of each has a store that listens
/// already: no two of them are one node's, which has one role.
void divide(World& world, const OwnRoles& own) {
  std::optional<Meeting> rest;
  for (std::size_t i = 0; i < world.members.size(); ++i) {
    const Node& node = world.members[i];
    const Meeting first{0, node.address, node.store_port, static_cast<int>(i)};
    Meeting& meeting = own.contains(node.role)
                           ? world.own.try_emplace(node.role, first).first->second
                       : rest ? *rest
                              : rest.emplace(first);
    ++meeting.store_nodes;
    meeting.store_workers += node.local_world_size;
  }
  // A role that is alone is the whole job.
  if (world.own.size() + (rest ? 1 : 0) < 2) return world.own.clear();
  if (rest) world.all = *rest;
}

}  // namespace

World make_world(std::vector<Node> members, RankOrder order, std::string master_addr,
                 std::uint16_t master_port, const OwnRoles& own) {
  World world;
  world.members = std::move(members);
  sort_members(world.members, order);
  world.ranks = compute_ranks(world.members);
  const Node& first = world.members.front();
  const bool given = !master_addr.empty() || master_port != 0;
  // Loopback is one machine's own: it does where all others are on that one, too.
  const bool ours =
      master_addr.empty() || (is_loopback(master_addr) && !is_loopback(first.address));
  world.all.master_addr = ours ? first.address : std::move(master_addr);
  world.all.master_port = master_port == 0 ? first.store_port : master_port;
  if (!own.empty() && !given) divide(world, own);
  return world;
}

World start_again(const World& world, const std::string& role, std::vector<Node> members,
                  bool attempt_spent, int spent) {
  World next = world;
  next.members = std::move(members);
  next.spent = spent;
  Meeting& meeting = next.own.at(role);
  const Node& host = next.members[static_cast<std::size_t>(meeting.store_rank)];
  meeting.master_addr = host.address, meeting.master_port = host.store_port;
  if (attempt_spent) ++meeting.attempt;
  meeting.again = true;
  return next;
}

Round place_of(const World& world, int group_rank) {
  const auto at = static_cast<std::size_t>(group_rank);
  Round round{world.meeting_of(world.members[at].role), world.ranks.of[at]};
  round.epoch = world.id.epoch;
  round.number = world.id.round;
  if (world.is_divided()) round.spent = world.spent;
  round.restarts_left = world.left;
  round.group_rank = group_rank;
  round.world_size = world.ranks.world_size;
  return round;
}

Round round_of(const World& world, int group_rank) {
  Round round = place_of(world, group_rank);
  round.members = world.members;
  return round;
}

Push to_push(const Notice& notice) {
  if (const auto* assigned = std::get_if<Assigned>(&notice)) {
    return RoundReady{round_of(*assigned->world, assigned->group_rank)};
  }
  return *std::get<std::shared_ptr<const Push>>(notice);
}

}  // namespace elastrun::rendezvous
