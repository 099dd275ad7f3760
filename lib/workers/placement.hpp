// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace elastrun::workers {

/// Where the workers of this node stand in the world of one round. Plain numbers, made from the
/// rendezvous' round; the same for all workers of the node.
struct Placement {
  int attempt = 0;  // restarts spent by the job: TORCHELASTIC_RESTART_COUNT
  int group_rank = 0, group_world_size = 1;
  int local_world_size = 1;
  int rank_base = 0, world_size = 1;
  int role_rank_base = 0, role_world_size = 1;
  std::string role = "default";
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;
  bool use_agent_store = true;  // false: worker rank 0 hosts the store itself

  int rank_of(int local_rank) const { return rank_base + local_rank; }
};

}  // namespace elastrun::workers
