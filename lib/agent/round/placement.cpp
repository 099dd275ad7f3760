// SPDX-License-Identifier: Apache-2.0
#include "agent/round/placement.hpp"

#include <cstdint>
#include <utility>

namespace elastrun::agent {

net::Endpoint meeting_place(const spec::JobSpec& spec, const rendezvous::Round& round) {
  // What node 0 was told is in the round, unless it means nothing to others.
  const bool told = spec.rdzv_backend == spec::backend::kStatic && round.group_rank != 0 &&
                    !spec.master_addr.empty();
  if (told) return {spec.master_addr, static_cast<std::uint16_t>(spec.master_port.value_or(0))};
  return {round.master_addr, round.master_port};
}

workers::Placement placement_of(const spec::JobSpec& spec, const rendezvous::Round& round,
                                bool use_agent_store) {
  const auto& self = round.members[static_cast<std::size_t>(round.group_rank)];
  workers::Placement place;
  place.attempt = round.attempt;
  place.group_rank = round.group_rank;
  place.group_world_size = round.group_world_size();
  place.local_world_size = self.local_world_size;
  place.rank_base = round.rank_base;
  place.world_size = round.world_size;
  place.role_rank_base = round.role_rank_base;
  place.role_world_size = round.role_world_size;
  place.role = self.role;
  const auto meeting = meeting_place(spec, round);
  place.master_addr = meeting.host;
  place.master_port = meeting.port;
  place.use_agent_store = use_agent_store;
  return place;
}

Result<Folders> make_folders(logs::Layout& layout, int attempt, int workers) {
  auto directory = layout.make_attempt(attempt);
  if (!directory) return std::unexpected(directory.error());
  Folders made{std::move(*directory), {}};
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    auto rank = layout.make_rank(made.attempt, local_rank);
    if (!rank) return std::unexpected(rank.error());
    made.ranks.push_back(std::move(*rank));
  }
  return made;
}

}  // namespace elastrun::agent
