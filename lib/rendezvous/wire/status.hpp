// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/json.hpp"
#include "rendezvous/membership/state.hpp"

namespace elastrun::rendezvous {

/// Who is in, who is missing, which phase each node waits in and for how long
/// (elastrun-protocol(7)). Pure.
json::object describe(const State& state, TimePoint now);

}  // namespace elastrun::rendezvous
