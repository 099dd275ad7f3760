// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/session/handler.hpp"

#include <cstdint>
#include <string>

/// What the agents of a round have to tell each other when a user's handler brought them together.
/// Both calls wait; they are for the handler's thread.
namespace elastrun::rendezvous {

/// What this agent brings along.
struct Contribution {
  Node self;
  std::int64_t round = 0;       // rounds that it has seen
  int attempt = 0;              // restarts that it knows of
  BootstrapStoreInfo master{};  // what the user fixed; empty and 0: nothing
};

/// Everybody's ranks. Rank 0 collects the nodes, and all of them compute the same world from its
/// list; attempt and round number are the highest that any of them knows. Fails with Rendezvous if
/// what the handler says is impossible, with Protocol if what the store holds means nothing,
/// otherwise as the store does.
Result<Round> agree_on_round(const RendezvousInfo& info, Contribution own);

/// Waits until all agents of the round have come here, as torchrun's exit barrier.
Status leave_together(const RendezvousInfo& info, Duration timeout);
/// The same for one that has come there already.
Status await_all_left(const RendezvousInfo& info, Duration timeout);

}  // namespace elastrun::rendezvous
