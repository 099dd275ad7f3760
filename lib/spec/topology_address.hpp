// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/job_spec.hpp"
#include "spec/merge.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// Where a node is in a network, the outermost level first, with a point between two levels:
/// "zone1.rack7". Why this is not such an address; empty: it is one. Pure.
std::string topology_problem(std::string_view address);

/// Fills `topology`, once the rendezvous is chosen: what --topology says, or what Slurm and the
/// GPUs' driver tell, which is asked for nothing but --rank-order topology. What these tell may be
/// wrong or missing, and refuses no job.
std::optional<Refusal> take_topology(JobSpec& job, Values& values, const HostEnvironment& around,
                                     std::vector<std::string>& warnings,
                                     std::vector<std::string>& notes);

}  // namespace elastrun::spec
