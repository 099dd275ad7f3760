// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "spec/job_spec.hpp"
#include "workers/placement.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::workers {

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

/// The calling process' environment as entries.
std::vector<std::string> own_environment();

}  // namespace elastrun::workers
