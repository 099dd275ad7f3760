// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/rules.hpp"
#include "rendezvous/membership/world_fence.hpp"

#include <string>
#include <vector>

/// The sentences that people read about a rendezvous, where they are long or said in several
/// places. Pure.
namespace elastrun::rendezvous {

/// "1 node", "2 nodes".
std::string nodes_text(int count);
/// "1 of 3 restarts used", or "4 restarts, 3 of 3 left": a checkpoint has given them back, or a
/// rule has granted others.
std::string restarts_text(int spent, int left, int most);
std::string rejoined_text(const Node& node);
std::string departed_text(const Member& member, Cause::Kind kind, const std::string& why);
std::string stuck_text(const Rules& rules);
/// No agent has that role; `there` are those of the agents.
std::string missing_role_text(const std::string& role, const std::vector<std::string>& there);
/// The hosts of the nodes that wait, " (node1, node2)"; of many the first. Empty if none is known.
std::string waiting_hosts_text(Roster& roster);
/// `hosts`: as waiting_hosts_text has them.
std::string join_timeout_text(const Rules& rules, const Quorum& there,
                              const WorldFence& world_fence, const std::string& hosts,
                              TimePoint now);
std::string progress_text(const Rules& rules, const Quorum& there, const JoinPhase& join_phase,
                          const WorldFence& world_fence, const std::string& hosts, TimePoint now);

}  // namespace elastrun::rendezvous
