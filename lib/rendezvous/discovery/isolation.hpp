// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/discovery/elected_locator.hpp"

namespace elastrun::rendezvous {

/// After which the group of a member that does not hear us has ended (see HeartbeatLease).
Duration time_to_stop(const ElectedLocatorSettings& settings);

/// In which all who are cut off from a leader notice that, and find that it does not answer. `ttl`:
/// of its lease.
Duration yield_pause(const ElectedLocatorSettings& settings, Duration ttl);

}  // namespace elastrun::rendezvous
