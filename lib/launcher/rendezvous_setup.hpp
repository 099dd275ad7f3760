// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/run_context.hpp"
#include "agent/round/round_store.hpp"
#include "core/error.hpp"
#include "rendezvous/session/handler.hpp"
#include "rendezvous/session/session.hpp"

#include <memory>

namespace elastrun::agent {

/// How this node meets the others, and where it would serve their workers' store.
struct RendezvousSetup {
  std::unique_ptr<rendezvous::Session> session;
  std::unique_ptr<RoundStore> store;
  bool alone = false;  // no other node can ever take part
  /// Where the workers of this node meet instead of where the rounds say; empty and 0: there.
  rendezvous::BootstrapStoreInfo master{};
};

/// A rendezvous that the launcher brings along, instead of the back end that the job names.
struct OwnRendezvous {
  rendezvous::Handler handler{};  // null: none
  /// Where the workers are to meet, over what rounds and handler say; empty and 0: not fixed.
  rendezvous::BootstrapStoreInfo master{};
};

/// Made from the job's rendezvous options; completes `self` (address). Nothing is sent yet. Fails
/// with Usage for what cannot work (a back end that does not exist, a bad endpoint).
///
/// A back end that is none of ours is made by what is registered under its name.
Result<RendezvousSetup> set_up_rendezvous(RunContext& run, rendezvous::Node& self,
                                          OwnRendezvous own = {});

/// Has the workers of a round meet at `master`, address and port apart, if those are fixed.
void meet_at(const rendezvous::BootstrapStoreInfo& master, rendezvous::Round& round);

}  // namespace elastrun::agent
