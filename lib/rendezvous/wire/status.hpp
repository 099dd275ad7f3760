// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/json.hpp"
#include "rendezvous/membership/state.hpp"

#include <map>
#include <string>

namespace elastrun::rendezvous {

/// Who is in, who is missing, which phase each node waits in and for how long
/// (elastrun-protocol(7)). Pure.
/// `held`: as Standstill::held().
json::object describe(const State& state, const std::map<int, std::string>& held, TimePoint now);

}  // namespace elastrun::rendezvous
