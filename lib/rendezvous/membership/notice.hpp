// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/world.hpp"

#include <memory>
#include <variant>

namespace elastrun::rendezvous {

/// A member's place in a round. The world is shared, not copied, between thousands of members.
struct Assigned {
  std::shared_ptr<const World> world;
  int group_rank = 0;
};
/// What one agent has to be told: its assignment, or something that is the same for all who hear
/// it.
using Notice = std::variant<Assigned, std::shared_ptr<const Push>>;
struct Delivery {
  Peer to = 0;
  Notice notice;
};
Push to_push(const Notice& notice);

}  // namespace elastrun::rendezvous
