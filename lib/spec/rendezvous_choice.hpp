// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/schedulers.hpp"
#include "spec/sources.hpp"

#include <optional>

namespace elastrun::spec {

/// Fills what says how nodes meet: backend, endpoint, run id, master address and port, node rank,
/// configuration, topology. `min_nodes` and `max_nodes` are set already. Applies torchrun's rules:
/// --standalone, or one node with nothing said about rendezvous, is c10d on localhost:0 with a
/// random run id. What these rules drop although it was given is a warning; what they decide is
/// written into the values as implied. `place` is what the scheduler knows: who hosts the
/// rendezvous (the user's own is_host in --rdzv-conf wins), and which start of the job this is.
std::optional<Refusal> choose_rendezvous(Resolved& job, const HostEnvironment& around,
                                         const std::optional<Placement>& place);

}  // namespace elastrun::spec
