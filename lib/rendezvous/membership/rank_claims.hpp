// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/roster.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Agents that claim a fixed rank which another one has. Perhaps that one has died and these are to
/// replace it: who lives is heard of again. So each waits until the owner of its rank is heard, and
/// is refused then, or falls silent or goes, and is admitted then. Pure.
class RankClaims {
 public:
  struct Claim {
    Peer peer = 0;
    Node node;
    PreviousWorld previous;
  };
  using Claims = std::vector<Claim>;

  /// First come, first served.
  void add(Claim claim) { claims_.push_back(std::move(claim)); }
  /// It is gone.
  void drop(Peer peer) {
    std::erase_if(claims_, [peer](const Claim& claim) { return claim.peer == peer; });
  }
  /// That agent has joined again, perhaps over another connection.
  void drop(Peer peer, const Node& node) {
    drop(peer);
    std::erase_if(claims_, [name = agent_name(node)](const Claim& claim) {
      return agent_name(claim.node) == name;
    });
  }
  bool empty() const { return claims_.empty(); }
  /// Those for that rank, which are claims no more.
  Claims take(int node_rank) {
    Claims taken;
    for (const Claim& claim : claims_) {
      if (claim.node.node_rank == node_rank) taken.push_back(claim);
    }
    for (const Claim& claim : taken) drop(claim.peer);
    return taken;
  }
  /// The same for all free ranks.
  Claims take_free(Roster& roster) {
    Claims taken;
    for (const Claim& claim : claims_) {
      if (roster.with_node_rank(claim.node.node_rank) == nullptr) taken.push_back(claim);
    }
    for (const Claim& claim : taken) drop(claim.peer);
    return taken;
  }
  Claims take_all() { return std::exchange(claims_, {}); }

 private:
  Claims claims_;
};

}  // namespace elastrun::rendezvous
