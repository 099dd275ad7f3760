// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/job_spec.hpp"
#include "spec/override.hpp"

#include <optional>

namespace elastrun::spec {

/// --worker-lib and --goodput auto: appends the folder of the Python package that came with this
/// program to PYTHONPATH of the workers. Refused if there is none beside the program: below
/// PREFIX/share/elastrun/python (cmake --install, wheel), or in the source tree of a build. With
/// --goodput auto a folder comes before all others from which Python starts the hooks into torch.
std::optional<Refusal> add_worker_library(JobSpec& job, const HostEnvironment& around);

/// Where forkserver.py is, for --start-method forkserver and auto: in the same package.
void find_fork_server(JobSpec& job, const HostEnvironment& around);

}  // namespace elastrun::spec
