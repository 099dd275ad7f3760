// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "logs/layout.hpp"
#include "logs/stream_factory.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/membership/round.hpp"
#include "spec/job_spec.hpp"
#include "workers/environment.hpp"
#include "workers/group.hpp"

#include <functional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// What the workers of this node need to know of a round.
workers::Placement placement_of(const spec::JobSpec& spec, const rendezvous::Round& round,
                                bool use_agent_store);
/// Where they meet the others: of a static rendezvous where this node was told, as with torchrun,
/// since its agent has come there; that need not lead there from other nodes.
net::Endpoint meeting_place(const spec::JobSpec& spec, const rendezvous::Round& round);

/// The directories of one start of workers; empty paths with --log-dir /dev/null.
struct Folders {
  std::string attempt;
  std::vector<std::string> ranks;  // by local rank
};
/// Makes them; may wait for the file system. Fails with Io.
Result<Folders> make_folders(logs::Layout& layout, int attempt, int workers);

/// Prepares a start of the workers: opens the streams, and puts command, environment and binding of
/// each worker together. One for a job.
class WorkerPlans {
 public:
  struct Parts {
    /// The directories for this round.
    std::function<Result<Folders>(const rendezvous::Round&)> folders;
    logs::StreamFactory& streams;
    std::vector<std::string> environment;  // of the agent
    workers::JobFacts facts;
    std::function<bool()> use_agent_store;
    /// Where workers find the channel, asked once the run's directory exists; empty: none.
    std::function<std::string()> channel;
    /// Where the worker with that local rank finds its page; empty function or result: none.
    std::function<std::string(int local_rank)> page{};
    /// CPUs of the worker with that local rank; empty function or result: not bound.
    std::function<Result<std::vector<int>>(int local_rank)> cpus;
    /// The soft limit of descriptors that the user gave, if the agent has raised its own.
    std::optional<std::uint64_t> open_files;
    /// The cgroup to be born in; empty function or -1: ours.
    std::function<int()> cgroup_fd;
  };
  WorkerPlans(const spec::JobSpec& spec, Parts parts) : spec_(spec), parts_(std::move(parts)) {}

  /// In the order of local ranks. Fails with Io (directories, descriptors) or Usage (devices,
  /// CPUs).
  Result<std::vector<workers::WorkerPlan>> make(const rendezvous::Round& round);

 private:
  Result<workers::WorkerPlan> make_one(const workers::Placement& place, int local_rank,
                                       const std::string& directory, const std::string& channel);
  logs::StreamSettings stream_settings(const workers::Placement& place, int local_rank,
                                       const std::string& directory) const;

  const spec::JobSpec& spec_;
  const Parts parts_;
};

}  // namespace elastrun::agent
