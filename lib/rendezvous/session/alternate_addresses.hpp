// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>
#include <vector>

namespace elastrun::rendezvous {

/// Those of `all`, the addresses of this machine, from which its workers may come to the store
/// instead of `address`: theirs is that of the route to the store, which need not be the one by
/// which their agent came to the coordinator. Without loopback, which is every machine's own, and
/// kMaxAlternateAddresses at most.
std::vector<std::string> alternate_addresses(const std::string& address,
                                             const std::vector<boost::asio::ip::address>& all);

}  // namespace elastrun::rendezvous
