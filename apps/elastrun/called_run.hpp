// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/guardian.hpp"

#include <optional>
#include <string>

namespace elastrun {

/// The descriptor in `--caller=N`, by which a program drives this one as its agent;
/// nothing in any other command line.
std::optional<int> caller_descriptor(int argc, char** argv);

/// Runs the one job that the caller asks for, and tells it what the agent tells and how the job
/// ended. Ends the job as by SIGTERM when the caller has gone. The exit code.
int run_for_caller(guardian::Agent& guardian, int descriptor);

}  // namespace elastrun
