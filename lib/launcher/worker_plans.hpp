// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/run_files.hpp"
#include "agent/hang/expiration_timers.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/round/placement.hpp"
#include "agent/round/round_store.hpp"
#include "agent/round/shared_pages.hpp"
#include "launcher/workers/binding.hpp"
#include "logs/stream_factory.hpp"
#include "process/containment.hpp"
#include "workers/environment.hpp"
#include "workers/worker.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Prepares a start of the workers: opens the streams, and puts command, environment and binding of
/// each worker together. One for a job.
class WorkerPlans {
 public:
  /// `open_files`: the soft limit of descriptors that the user gave, if the agent has raised its
  /// own. Borrows all else.
  WorkerPlans(RunContext& run, workers::JobFacts facts, RunFiles& files,
              logs::StreamFactory& streams, RoundStore& store, SharedPages& pages, Binding& binding,
              process::Containment& containment, std::optional<std::uint64_t> open_files)
      : run_(run),
        facts_(std::move(facts)),
        files_(files),
        streams_(streams),
        store_(store),
        pages_(pages),
        binding_(binding),
        containment_(containment),
        open_files_(open_files) {}

  /// In the order of local ranks. Fails with Io (directories, descriptors) or Usage (devices,
  /// CPUs).
  Result<std::vector<workers::WorkerPlan>> make(const rendezvous::Round& round);

 private:
  Result<workers::WorkerPlan> make_one(const workers::Placement& place, int local_rank,
                                       const std::string& directory, const std::string& channel);
  logs::StreamSettings stream_settings(const workers::Placement& place, int local_rank,
                                       const std::string& directory) const;

  RunContext& run_;
  const workers::JobFacts facts_;
  RunFiles& files_;
  logs::StreamFactory& streams_;
  RoundStore& store_;
  SharedPages& pages_;
  Binding& binding_;
  process::Containment& containment_;
  const std::optional<std::uint64_t> open_files_;
};

}  // namespace elastrun::agent
