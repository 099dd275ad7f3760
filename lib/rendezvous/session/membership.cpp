// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/membership.hpp"

#include "net/endpoint.hpp"
#include "rendezvous/wire/message_parts.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace elastrun::rendezvous {

std::vector<std::string> alternate_addresses(const std::string& address,
                                             const std::vector<boost::asio::ip::address>& all) {
  std::vector<std::string> found;
  for (const auto& own : all) {
    // From another machine neither leads here.
    if (own.is_loopback() || (own.is_v6() && own.to_v6().is_link_local())) continue;
    if (own.to_string() != address && found.size() < kMaxAlternateAddresses) {
      found.push_back(own.to_string());
    }
  }
  return found;
}

Join Membership::describe(const std::string& address, const Rules& rules, int node_rank) {
  Join join{self_, previous_, rules,
            knows_.id.is_later_than(previous_.id) ? knows_ : PreviousWorld{}};
  Node& node = join.node;
  if (node.address.empty()) node.address = address;
  // The same on all connections of this agent: by it a coordinator tells a node that comes back
  // from another one under the same name.
  if (node.instance.empty()) node.instance = instance_;
  // Elsewhere --node-rank has no effect, as with torchrun: the coordinator gives out the ranks.
  if (rules.fixed_ranks) node.node_rank = node_rank;
  // A worker's packets may leave by any of them (rails, container bridges), and the store of a
  // round lets in only addresses that it knows.
  node.alternates = alternate_addresses(node.address, net::own_addresses());
  // As torch names nodes: address, process, number within the process.
  if (node.id.empty()) node.id = fmt::format("{}_{}_0", node.address, ::getpid());
  id_ = node.id;
  return join;
}

Restart Membership::restart_after_loss(const std::string& why) const {
  Cause cause{.kind = Cause::Kind::CoordinatorLost, .node = id_};
  cause.text = fmt::format("the connection to the coordinator was lost ({})", why);
  return {std::move(cause), false, restarts_left_};
}

}  // namespace elastrun::rendezvous
