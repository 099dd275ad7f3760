// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "spec/job_spec.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// What stands in a worker's environment in every round.
struct JobFacts {
  const spec::JobSpec& job;
  std::string agent_id{};    // ELASTRUN_AGENT_ID
  std::string timer_file{};  // TORCHELASTIC_TIMER_FILE; empty: as the agent has it
};

/// Paths of one worker of one attempt. Empty ones become an empty variable (error file, as torchrun
/// does without a log directory) or none at all (the others).
struct WorkerFiles {
  std::string error_file;
  std::string run_dir;
  std::string channel;
  std::string page{};
};

/// The whole environment of the worker with that local rank, as "NAME=VALUE": the agent's own,
/// then the job's extra variables over it, then the contract (torchrun's and ours) over both. Pure.
/// Fails with Usage when --virtual-local-rank finds fewer devices than workers.
Result<std::vector<std::string>> worker_environment(std::span<const std::string> agent,
                                                    const JobFacts& facts, const Placement& place,
                                                    int local_rank, const WorkerFiles& files);

/// What the contract alone adds or replaces: for people (--dry-run), in a fixed order.
Result<std::vector<std::string>> contract_variables(std::span<const std::string> agent,
                                                    const JobFacts& facts, const Placement& place,
                                                    int local_rank, const WorkerFiles& files);

/// Value of a variable among "NAME=VALUE" entries; of several the first counts, as in getenv(3).
std::optional<std::string_view> find_variable(std::span<const std::string> entries,
                                              std::string_view name);

/// What proves who belongs to the job, or opens the door to its etcd: for agents alone. Workers run
/// code of others, write their environment into logs and crash reports, and need none of it.
bool is_secret(std::string_view name, std::string_view value);

/// Takes away what worker_environment() adds for one worker alone, or for one start of it.
void remove_placement(std::vector<std::string>& environment);

/// The calling process' environment as entries.
std::vector<std::string> own_environment();

}  // namespace elastrun::workers
