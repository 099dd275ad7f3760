// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/membership/round.hpp"
#include "spec/job_spec.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::workers {

/// What one worker's environment is made of. Empty paths become an empty variable (error file, as
/// torchrun does without a log directory) or none at all (the others).
struct WorkerFacts {
  const spec::JobSpec& job;
  const rendezvous::Round& round;
  const rendezvous::Node& node;  // this one
  int nodes = 1;                 // in the round
  net::Endpoint meeting{};       // MASTER_ADDR and MASTER_PORT
  bool use_agent_store = true;   // false: worker rank 0 hosts the store itself
  int local_rank = 0;
  std::string agent_id{};    // ELASTRUN_AGENT_ID
  std::string timer_file{};  // TORCHELASTIC_TIMER_FILE; empty: as the agent has it
  std::string error_file{}, run_dir{}, channel{}, page{};  // of this attempt
};

/// The whole environment of a worker, as "NAME=VALUE": the agent's own, then the job's extra
/// variables over it, then the contract (torchrun's and ours) over both. Pure. Fails with Usage
/// when
/// --virtual-local-rank finds fewer devices than workers.
Result<std::vector<std::string>> worker_environment(std::span<const std::string> agent,
                                                    const WorkerFacts& facts);

/// What the contract alone adds or replaces: for people (--dry-run), in a fixed order.
Result<std::vector<std::string>> contract_variables(std::span<const std::string> agent,
                                                    const WorkerFacts& facts);

/// What proves who belongs to the job, or opens the door to its etcd: for agents alone. Workers run
/// code of others, write their environment into logs and crash reports, and need none of it.
bool is_secret(std::string_view name, std::string_view value);

/// Takes away what worker_environment() adds for one worker alone, or for one start of it.
void remove_placement(std::vector<std::string>& environment);

/// The calling process' environment as entries.
std::vector<std::string> own_environment();

/// Argument vector of the worker with that local rank: torchrun's command for the job's mode, each
/// argument with `$local_rank` filled in. --run-path becomes a Python program that runs the script
/// in process, as torchrun's child does.
std::vector<std::string> worker_command(const spec::JobSpec& spec, int local_rank);

/// Why the script cannot be started a second time: it is `-`, standard input, or a pipe, which the
/// first start reads to its end. Empty: it can.
std::string why_not_again(const spec::JobSpec& spec);

/// A Python program for `python -c`: its first argument is a script, the rest its arguments. Runs
/// the script with runpy as `__main__`; an exception is written to TORCHELASTIC_ERROR_FILE in the
/// form of torch's `@record` and raised again. When the script has returned, it waits until those
/// of all workers of this node have (Channel::release). Standard library only.
extern const std::string_view kRunPathProgram;

/// See fill_template(), with the one name `local_rank`.
std::string fill_local_rank(std::string_view text, int local_rank);

/// The program in "failed (exitcode: ..) .. of binary: PROGRAM".
std::string program_name(const spec::JobSpec& spec);
/// The same without its directory, as torch's events and log lines name it.
std::string program_base_name(const spec::JobSpec& spec);

/// The title of the failure report: script or module as typed, or the program. With an interpreter
/// of the user's own (PYTHON_EXEC) that program, as torchrun does.
std::string entry_name(const spec::JobSpec& spec);

}  // namespace elastrun::workers
