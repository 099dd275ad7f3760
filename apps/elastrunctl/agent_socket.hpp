// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "runs/run_registry.hpp"

#include <string_view>

namespace elastrun::ctl {

/// Sends the question to the agent of a run on this machine; on the connection comes the answer, if
/// there is one. Fails with Rendezvous where no worker of it runs, else with Io.
Result<UniqueFd> ask_agent(const runs::RunEntry& run, std::string_view question);

}  // namespace elastrun::ctl
