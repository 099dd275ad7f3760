// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/isolation.hpp"

namespace elastrun::rendezvous {

Duration time_to_stop(const ElectedLocatorSettings& settings) {
  return settings.coordinator.heartbeat * (settings.coordinator.heartbeats_missed + 2) +
         settings.grace;
}

Duration yield_pause(const ElectedLocatorSettings& settings, Duration ttl) {
  return time_to_stop(settings) - settings.grace + ttl;
}

}  // namespace elastrun::rendezvous
