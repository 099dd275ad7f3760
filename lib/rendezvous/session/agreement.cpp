// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/agreement.hpp"

#include "rendezvous/membership/world.hpp"
#include "rendezvous/wire/messages.hpp"
#include "store/blocking_store.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::rendezvous {

void members(Codec& codec, Contribution& one) {
  members(codec, one.self);
  codec("round", one.round);
  codec("attempt", one.attempt);
}

namespace {

constexpr const char* kList = "elastrun/nodes";
constexpr const char* kLeaving = "elastrun/leaving";
constexpr const char* kAllLeft = "elastrun/all_left";

std::string key_of(int rank) {
  return fmt::format("elastrun/node/{}", rank);
}

Status check(const RendezvousInfo& info, const Contribution& own) {
  if (info.world_size < 1 || info.rank < 0 || info.rank >= info.world_size) {
    return fail(Code::Rendezvous, fmt::format("it gave this node rank {} in a world of {} nodes",
                                              info.rank, info.world_size));
  }
  if (info.world_size > 1 && !info.store) {
    return fail(Code::Rendezvous,
                fmt::format("a world of {} nodes needs a store in its RendezvousInfo, for the "
                            "agents to tell each other how many workers they have",
                            info.world_size));
  }
  if (info.world_size > 1 && own.self.address.empty() && !info.bootstrap_store_info) {
    return fail(Code::Rendezvous,
                fmt::format("a world of {} nodes needs bootstrap_store_info in its RendezvousInfo, "
                            "or local_addr in the WorkerSpec: an address by which the others reach "
                            "this node",
                            info.world_size));
  }
  return {};
}

Result<Contribution> from_text(const json::value& value) {
  Contribution one;
  if (from_json(value, one).empty()) return one;
  return fail(Code::Protocol, "the store of the round holds no node where one belongs");
}

/// Rank 0's list of all nodes, in the order of their ranks.
Result<std::string> make_list(const RendezvousInfo& info, const std::string& own) {
  json::array list;
  for (int rank = 0; rank < info.world_size; ++rank) {
    // One after another: get() blocks until that node has come, and the slowest decides in any
    // order.
    auto text = rank == 0 ? Result<std::string>(own) : info.store->get(key_of(rank));
    if (!text) return std::unexpected(text.error().context("waiting for the other agents"));
    auto node = parse_json(*text);
    if (!node) return std::unexpected(node.error());
    list.push_back(std::move(*node));
  }
  auto text = json::serialize(list);
  if (info.world_size > 1) {
    if (const auto told = info.store->set(kList, text); !told) return std::unexpected(told.error());
  }
  return text;
}

Result<std::string> await_list(const RendezvousInfo& info, const std::string& own) {
  const auto told = info.store->set(key_of(info.rank), own);
  if (!told) return std::unexpected(told.error());
  // One key for all, and not each node's: in a world of n nodes that would be n * n requests.
  return info.store->get(kList);
}

}  // namespace

Result<Round> agree_on_round(const RendezvousInfo& info, Contribution own) {
  if (const auto sound = check(info, own); !sound) return std::unexpected(sound.error());
  // The rank that the handler gave is the order of the list, whatever --node-rank said.
  own.self.node_rank = info.rank;
  const auto text = json::serialize(to_json(own));
  const auto list = info.rank == 0 ? make_list(info, text) : await_list(info, text);
  if (!list) return std::unexpected(list.error());
  const auto parsed = parse_json(*list);
  if (!parsed) return std::unexpected(parsed.error());
  if (!parsed->is_array() ||
      parsed->get_array().size() != static_cast<std::size_t>(info.world_size)) {
    return fail(Code::Protocol, "the agents do not agree about the size of the world");
  }
  std::vector<Node> nodes;
  for (const auto& value : parsed->get_array()) {
    const auto one = from_text(value);
    if (!one) return std::unexpected(one.error());
    if (one->self.node_rank != static_cast<int>(nodes.size())) {
      return fail(Code::Rendezvous, "two nodes were given the same rank");
    }
    nodes.push_back(one->self);
    // The furthest of all, since a new node knows of no rounds.
    own.round = std::max(own.round, one->round);
    own.attempt = std::max(own.attempt, one->attempt);
  }
  // All make the same world from the same list, so no message has to tell it.
  World world = make_world(std::move(nodes), RankOrder::Fixed, own.master.master_addr,
                           own.master.master_port);
  world.id.round = own.round + 1;
  world.all.attempt = world.spent = own.attempt;
  return round_of(world, info.rank);
}

Status leave_together(const RendezvousInfo& info, Duration timeout) {
  if (info.world_size < 2) return {};
  // A counter and a key, since a store can wait for a key but not for a number.
  const auto left = info.store->add(kLeaving, 1);
  if (!left) return std::unexpected(left.error());
  // add() is atomic in the store, so exactly one node reads the full count and sets the key.
  if (*left == info.world_size) return info.store->set(kAllLeft, "1");
  return await_all_left(info, timeout);
}

Status await_all_left(const RendezvousInfo& info, Duration timeout) {
  return info.store->wait({kAllLeft}, timeout);
}

}  // namespace elastrun::rendezvous
