// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/asio/ip/address.hpp>
#include <string>
#include <vector>

/// Under which address other machines reach this one, as far as it can know that by itself.
namespace elastrun::net {

/// Every address of the machine that asks: "0.0.0.0", "::".
bool is_wildcard(const std::string& host);
/// Leads to the machine that asks: "localhost", "127.0.0.1", "::1".
bool is_loopback_host(const std::string& host);

struct OwnAddress {
  std::string interface;
  boost::asio::ip::address address;
};

/// Lists addresses of interfaces that are up and have a carrier, except what others cannot use:
/// loopback, link-local addresses, and the bridges that Docker and libvirt make on each machine.
std::vector<OwnAddress> reachable_addresses();

/// The only one: the first of the only interface, IPv4 if it has both; 127.0.0.1 if there is none.
/// Fails with Usage if there are several interfaces, and names them. Pure.
Result<boost::asio::ip::address> only_address(const std::vector<OwnAddress>& known);

/// The own address on the way to `peer`, if it is specified and there is such a way; else that of
/// the default route; else the only one there is, as above. Nothing is sent.
Result<boost::asio::ip::address> outward_address(const boost::asio::ip::address& peer);

}  // namespace elastrun::net
