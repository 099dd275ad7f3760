// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace elastrun::agent {

/// Of everything that the agent tells of itself: events, spans and instruments.
inline constexpr std::string_view kAgentScope = "elastrun.agent";

}  // namespace elastrun::agent
