// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/rules.hpp"
#include "rendezvous/membership/world_fence.hpp"

#include <string>

/// The sentences that people read about a rendezvous, where they are long or said in several
/// places. Pure.
namespace elastrun::rendezvous {

/// "1 node", "2 nodes".
std::string nodes_text(int count);
/// "1 of 3 restarts used", or "4 restarts, 3 of 3 left": a checkpoint has given them back, or a
/// rule has granted others.
std::string restarts_text(int spent, int left, int most);
/// Whom a round that is formed waits for. `held`: the coordinator cannot prove that it is the
/// leader. `hosts` of those that wait: " (node1, node2)".
std::string progress_text(const Rules& rules, const Quorum& there, const JoinPhase& join_phase,
                          const WorldFence& world_fence, bool held, const std::string& hosts,
                          TimePoint now);

}  // namespace elastrun::rendezvous
