// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/job_spec.hpp"
#include "spec/override.hpp"

#include <string>
#include <vector>

namespace elastrun::spec {

/// The first executable file of that name in PATH, or the name itself if it has a slash and is one.
std::optional<std::string> find_program(const std::string& name, const HostEnvironment& around);

/// Fills `job.interpreter`: PYTHON_EXEC as it is, else one beside the program that was called, else
/// python3 of PATH, else that of the active virtual environment, else python of PATH. Refuses, with
/// exit code 1 as torchrun, one that is missing or not executable.
std::optional<Refusal> find_interpreter(JobSpec& job, const HostEnvironment& around);

/// The interpreter for the modes that need one, else the program (--no-python), which is refused
/// likewise. A missing script is a warning: Python itself says so too, and the job ends as with
/// torchrun.
std::optional<Refusal> find_programs(JobSpec& job, const HostEnvironment& around,
                                     std::vector<std::string>& warnings);

}  // namespace elastrun::spec
