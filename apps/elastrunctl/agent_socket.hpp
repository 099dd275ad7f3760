// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <string>

namespace elastrun::ctl {

/// A connection to the channel of an agent on this machine. Fails with Io.
Result<UniqueFd> connect_to_agent(const std::string& channel);

}  // namespace elastrun::ctl
