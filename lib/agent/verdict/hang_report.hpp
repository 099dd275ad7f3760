// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"

#include <string>
#include <string_view>

namespace elastrun::agent {

/// For the verdict: that the job hung, and where its workers stood; empty if it did not in its last
/// attempt. What `told`, the sentence above it, says already is not said again. Pure.
std::string hang_verdict(const JobResult& result, std::string_view told);

}  // namespace elastrun::agent
