// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/world_fence.hpp"

#include <string>
#include <vector>

/// The sentences that people read about a rendezvous. Pure.
namespace elastrun::rendezvous {

/// "1 of 3 restarts used", or "4 restarts, 3 of 3 left": a checkpoint has given them back, or a
/// rule has granted others.
std::string restarts_text(int spent, int left, int most);
std::string already_over_text(const std::string& run_id);
std::string ending_text(const std::string& run_id);
std::string coordinator_gone_text(const std::string& why);
/// The peer closed the connection.
std::string hung_up_text(const std::string& error);
std::string no_coordinator_text(const std::string& run_id, Duration time, const std::string& why);
std::string rank_out_of_range_text(const Node& node, int nodes);
std::string rank_awaited_text(const Node& owner);
std::string rank_taken_text(const Node& node, const Node& owner);
/// `node` cannot start its workers.
std::string unable_text(const std::string& node, const std::string& why);
std::string rejoined_text(const Node& node);
std::string joined_text(const Node& first, int newcomers);
std::string departed_text(const Member& member, Cause::Kind kind, const std::string& why);
std::string stuck_text(const Rules& rules);
/// Of a role that was to restart alone.
std::string role_timeout_text(const std::string& role, const Rules& rules);
/// No agent has that role; `there` are those of the agents.
std::string missing_role_text(const std::string& role, const std::vector<std::string>& there);
/// The hosts of the nodes that wait, " (node1, node2)"; of many the first. Empty if none is known.
std::string waiting_hosts_text(Roster& roster);
/// `hosts`: as waiting_hosts_text has them.
std::string join_timeout_text(const Rules& rules, const Quorum& there,
                              const WorldFence& world_fence, const std::string& hosts,
                              TimePoint now);
/// The world that could be given out is not recorded yet, or could not be.
std::string recording_text(const Quorum& there);
std::string unrecorded_text(const Rules& rules);
std::string progress_text(const Rules& rules, const Quorum& there, const JoinPhase& join_phase,
                          const WorldFence& world_fence, const std::string& hosts, TimePoint now);

}  // namespace elastrun::rendezvous
