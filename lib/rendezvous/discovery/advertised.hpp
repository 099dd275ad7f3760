// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "rendezvous/discovery/elected_locator.hpp"
#include "rendezvous/election/leader_lease.hpp"

#include <boost/asio/ip/address.hpp>
#include <string>

namespace elastrun::rendezvous {

/// The address under which other machines find a coordinator in this process. `seen`: of the last
/// coordinator, as a hint at the network in question. Fails if there is none and others may come.
Result<std::string> advertised_address(const ElectedLocatorSettings& settings,
                                       const LeaderLease& lease,
                                       const boost::asio::ip::address& seen);

}  // namespace elastrun::rendezvous
