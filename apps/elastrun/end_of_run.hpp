// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "launcher/job_run.hpp"

namespace elastrun {

/// Reports to people, machines and the program that started us; cleans up. The exit code.
int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, agent::JobRun& run);

}  // namespace elastrun
