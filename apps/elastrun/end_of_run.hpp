// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/job_result.hpp"
#include "parts.hpp"

namespace elastrun {

/// Reports to people, machines and the program that started us; cleans up. The exit code.
int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, Parts& parts);

}  // namespace elastrun
