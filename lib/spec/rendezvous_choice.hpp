// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/job_spec.hpp"
#include "spec/merge.hpp"
#include "spec/schedulers.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun::spec {

/// Fills what says how nodes meet: backend, endpoint, run id, master address and port, node rank,
/// configuration. `job.min_nodes` and `job.max_nodes` are set already. Applies torchrun's rules:
/// --standalone, or one node with nothing said about rendezvous, is c10d on localhost:0 with a
/// random run id. What these rules drop although it was given is named in `warnings`; what they
/// decide is written into `values` as implied. `place` is what the scheduler knows: who hosts the
/// rendezvous (the user's own is_host in --rdzv-conf wins), and which start of the job this is.
std::optional<Refusal> choose_rendezvous(JobSpec& job, Values& values,
                                         const HostEnvironment& around,
                                         const std::optional<Placement>& place,
                                         std::vector<std::string>& warnings);

}  // namespace elastrun::spec
