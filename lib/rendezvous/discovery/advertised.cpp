// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/advertised.hpp"

#include "net/outward.hpp"

namespace elastrun::rendezvous {

namespace ip = boost::asio::ip;

Result<std::string> advertised_address(const ElectedLocatorSettings& settings,
                                       const LeaderLease& lease, const ip::address& seen) {
  if (!settings.advertise.empty()) return settings.advertise;
  ip::address own = lease.own_address();
  // A register on this machine is reached over loopback, which means nothing to other machines.
  if (own.is_unspecified() || own.is_loopback()) {
    const auto outward = net::outward_address(seen);
    const bool alone = settings.coordinator.rules.max_nodes == 1;
    if (!outward && !alone) return std::unexpected(outward.error());
    own = outward ? *outward : ip::address(ip::address_v4::loopback());
  }
  return own.to_string();
}

}  // namespace elastrun::rendezvous
