// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/status.hpp"

#include "core/text.hpp"
#include "rendezvous/membership/wording.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace elastrun::rendezvous {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 4> kPhaseNames = {"joining", "running", "failing", "ended"};

std::string_view doing(const Member& member, Phase phase) {
  switch (member.state) {
    case MemberState::Waiting:
      return phase == Phase::Running ? "spare" : "waiting for the round";
    case MemberState::Running:
      return member.started ? "running" : "starting its workers";
    case MemberState::Finished:
      return "finished, waiting for the others";
    case MemberState::Failed:
      return "failed";
    case MemberState::Stopping:
      return "stopping its workers";
    case MemberState::Renewing:
      return member.back ? "waiting for the others of its role, which restarts"
                         : "stopping its workers, as its role restarts";
  }
  return "unknown";
}

json::object describe(const Member& member, Phase phase, TimePoint now) {
  json::object node{{"id", member.node.id},
                    {"address", member.node.address},
                    {"role", member.node.role},
                    {"workers", member.node.local_world_size},
                    {"state", member_state_name(member.state)},
                    {"doing", doing(member, phase)},
                    {"seconds", to_seconds(now - member.since)}};
  if (member.node.node_rank >= 0) node["node_rank"] = member.node.node_rank;
  if (!member.node.topology.empty()) node["topology"] = member.node.topology;
  const bool in_round = takes_part(member.state) || member.state == MemberState::Failed;
  if (in_round) node["group_rank"] = member.node.last_rank;
  return node;
}

json::array member_nodes(const State& state, TimePoint now) {
  // Not by the roster's keys, which are numbers of connections and mean nothing to a reader.
  std::vector<const Member*> order;
  for (const auto& [peer, member] : state.roster().all()) order.push_back(&member);
  std::ranges::sort(order, [](const Member* left, const Member* right) {
    return comes_before(left->node, right->node);
  });
  json::array nodes;
  const auto& world = state.roles().world();
  for (const Member* member : order) {
    auto node = describe(*member, state.phase(), now);
    // Of one that restarts alone it is not the job's.
    if (world) node["attempt"] = world->meeting_of(member->node.role).attempt;
    nodes.emplace_back(std::move(node));
  }
  return nodes;
}

// With fixed ranks the missing have a name: their rank.
json::array missing_ranks(const State& state) {
  std::vector<bool> there(static_cast<std::size_t>(state.rules().max_nodes));
  for (const auto& [peer, member] : state.roster().all()) {
    // State::admit() has refused what is outside of the range.
    there.at(static_cast<std::size_t>(member.node.node_rank)) = true;
  }
  json::array missing;
  for (std::size_t rank = 0; rank < there.size(); ++rank) {
    if (!there[rank]) missing.emplace_back(rank);
  }
  return missing;
}

// The latest first, and no more than are missing: the place of the others has been taken.
json::array gone_nodes(const State& state, TimePoint now) {
  auto missing = state.rules().max_nodes - state.roster().size();
  json::array nodes;
  for (auto gone = state.gone().rbegin(); gone != state.gone().rend() && missing > 0; ++gone) {
    nodes.emplace_back(json::object{{"id", gone->node.id},
                                    {"address", gone->node.address},
                                    {"why", gone->why},
                                    {"seconds", to_seconds(now - gone->since)}});
    --missing;
  }
  return nodes;
}

json::array held_workers(const std::map<int, std::string>& held) {
  json::array list;
  for (const auto& [rank, by] : held) list.emplace_back(json::object{{"rank", rank}, {"by", by}});
  return list;
}

}  // namespace

json::object describe(const State& state, const std::map<int, std::string>& held, TimePoint now) {
  const Rules& rules = state.rules();
  const int here = state.roster().size();
  json::object job{{"run_id", state.run_id()},
                   {"epoch", state.epoch()},
                   {"phase", kPhaseNames.at(static_cast<std::size_t>(state.phase()))},
                   {"round", state.round_number()},
                   {"attempt", state.attempt()},
                   {"max_restarts", rules.max_restarts},
                   {"restarts_left", state.restarts_left()},
                   {"min_nodes", rules.min_nodes},
                   {"max_nodes", rules.max_nodes},
                   {"missing", std::max(rules.min_nodes - here, 0)},
                   {"nodes", member_nodes(state, now)}};
  if (auto gone = gone_nodes(state, now); !gone.empty()) job["gone"] = std::move(gone);
  if (const auto memory = state.restart_memory(now); !memory.empty())
    job["restarts"] = to_json(memory);
  if (rules.rank_order_topology) job["rank_order"] = "topology";
  if (!held.empty()) job["held"] = held_workers(held);
  if (rules.fixed_ranks) job["missing_node_ranks"] = missing_ranks(state);
  if (state.phase() == Phase::Joining && here > 0) {
    job["seconds"] = to_seconds(now - state.join_phase().since());
    job["text"] =
        progress_text(rules, state.quorum(), state.join_phase(), state.world_fence(), {}, now);
  }
  if (state.phase() == Phase::Ended) {
    job["failed"] = state.verdict().failed;
    job["text"] = state.verdict().cause.text;
  }
  return job;
}

}  // namespace elastrun::rendezvous
