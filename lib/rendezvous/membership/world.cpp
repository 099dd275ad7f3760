// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/world.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
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

World make_world(std::vector<Node> members, RankOrder order, std::string master_addr,
                 std::uint16_t master_port) {
  World world;
  world.members = std::move(members);
  sort_members(world.members, order);
  world.ranks = compute_ranks(world.members);
  world.master_addr = master_addr.empty() ? world.members.front().address : std::move(master_addr);
  world.master_port = master_port == 0 ? world.members.front().store_port : master_port;
  return world;
}

Round round_of(const World& world, int group_rank) {
  const Bases& bases = world.ranks.of[static_cast<std::size_t>(group_rank)];
  Round round;
  round.epoch = world.id.epoch;
  round.number = world.id.round;
  round.attempt = world.attempt;
  round.members = world.members;
  round.group_rank = group_rank;
  round.rank_base = bases.rank;
  round.world_size = world.ranks.world_size;
  round.role_rank_base = bases.role_rank;
  round.role_world_size = bases.role_world_size;
  round.master_addr = world.master_addr;
  round.master_port = world.master_port;
  return round;
}

Push to_push(const Notice& notice) {
  if (const auto* assigned = std::get_if<Assigned>(&notice)) {
    return RoundReady{round_of(*assigned->world, assigned->group_rank)};
  }
  return *std::get<std::shared_ptr<const Push>>(notice);
}

}  // namespace elastrun::rendezvous
