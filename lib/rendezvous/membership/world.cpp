// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/world.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace elastrun::rendezvous {

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
    ++meeting.nodes;
    meeting.workers += node.local_world_size;
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
  world.all.address = ours ? first.address : std::move(master_addr);
  world.all.port = master_port == 0 ? first.store_port : master_port;
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
  meeting.address = host.address, meeting.port = host.store_port;
  if (attempt_spent) ++meeting.attempt;
  meeting.again = true;
  return next;
}

Round place_of(const World& world, int group_rank) {
  const Bases& bases = world.ranks.of[static_cast<std::size_t>(group_rank)];
  Round round;
  round.epoch = world.id.epoch;
  round.number = world.id.round;
  const Meeting& meeting =
      world.meeting_of(world.members[static_cast<std::size_t>(group_rank)].role);
  round.attempt = meeting.attempt;
  round.restarts_left = world.left;
  round.group_rank = group_rank;
  round.rank_base = bases.rank;
  round.world_size = world.ranks.world_size;
  round.role_rank_base = bases.role_rank;
  round.role_world_size = bases.role_world_size;
  round.master_addr = meeting.address;
  round.master_port = meeting.port;
  if (!world.is_divided()) return round;
  round.spent = world.spent;
  round.store_rank = meeting.store_rank;
  round.store_nodes = meeting.nodes, round.store_workers = meeting.workers;
  round.again = meeting.again;
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
