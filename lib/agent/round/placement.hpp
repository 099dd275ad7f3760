// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "logs/layout.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/membership/round.hpp"
#include "spec/job_spec.hpp"
#include "workers/environment.hpp"

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

}  // namespace elastrun::agent
