// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

namespace elastrun::net {

/// A host, by name or number, and a port. IPv6 addresses are held without brackets.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

/// See parse_host_port. Fails with Usage.
Result<Endpoint> parse_endpoint(std::string_view text, std::uint16_t default_port);
/// "host:port", with brackets around an IPv6 address.
std::string format_endpoint(std::string_view host, std::uint16_t port);

/// The address of a numeric host, IPv4-mapped IPv6 as IPv4; an unspecified one for names.
boost::asio::ip::address parse_address(std::string_view host);
/// Unmaps an address: ::ffff:10.0.0.1 is 10.0.0.1.
boost::asio::ip::address plain(const boost::asio::ip::address& address);

/// The address in what the kernel gives out, IPv4 or IPv6; an unspecified one for other families.
boost::asio::ip::address from_sockaddr(const sockaddr* raw);

/// Every address of an interface of this machine that is up (getifaddrs(3)), loopback too.
std::vector<boost::asio::ip::address> own_addresses();
/// True if connecting to it ends on this machine: an interface has it, or it is in 127.0.0.0/8.
bool is_own_address(const boost::asio::ip::address& address);
/// The address that this machine would use as its own for talking to `target`: what the routing
/// table says, no packet is sent. Fails with Io without a route.
Result<boost::asio::ip::address> own_address_towards(const boost::asio::ip::address& target);

// Under which address other machines reach this one, as far as it can know that by itself:

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
