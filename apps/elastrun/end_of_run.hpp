// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "launcher/job_run.hpp"

#include <string>

namespace elastrun {

/// Leaves the failure for the program that started us: in our own TORCHELASTIC_ERROR_FILE, if there
/// is one, as torchrun does.
void hand_error_on(const std::string& message);

/// Reports to people, machines and the program that started us; cleans up. The exit code.
int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, agent::JobRun& run);

}  // namespace elastrun
