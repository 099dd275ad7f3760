// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"

#include <string>

namespace elastrun::agent {

/// For the verdict: that the job hung, and where its workers stood; empty if it did not in its last
/// attempt. Pure.
std::string hang_verdict(const JobResult& result);

}  // namespace elastrun::agent
