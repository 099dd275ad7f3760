// SPDX-License-Identifier: Apache-2.0

#include "net/endpoint.hpp"

#include "core/host.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <boost/asio/ip/udp.hpp>
#include <cstring>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace elastrun::net {
namespace {

namespace ip = boost::asio::ip;

// Documentation addresses (RFC 5737, RFC 3849): routed like any other that is far away.
constexpr const char* kFarAway[] = {"192.0.2.1", "2001:db8::1"};

bool is_of_use(const std::string& interface, const ip::address& address) {
  if (address.is_loopback() || address.is_multicast()) return false;
  // Bridges within a machine, where each node has the same address.
  if (interface.starts_with("docker") || interface.starts_with("virbr")) return false;
  if (address.is_v6()) return !address.to_v6().is_link_local();
  // Link-local addresses (RFC 3927) are made up where no DHCP server answers, and reach no router.
  return (address.to_v4().to_uint() >> 16) != 0xA9FE;  // 169.254/16
}

/// Of interfaces with all these flags.
std::vector<OwnAddress> addresses_with(unsigned flags) {
  std::vector<OwnAddress> found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    // ifa_addr may be null (getifaddrs(3)), as it is for a tunnel without an address.
    if (at->ifa_addr == nullptr || (at->ifa_flags & flags) != flags) continue;
    const auto address = from_sockaddr(at->ifa_addr);
    if (!address.is_unspecified()) found.push_back({at->ifa_name, address});
  }
  return found;
}

}  // namespace

bool is_wildcard(const std::string& host) {
  boost::system::error_code error;
  return ip::make_address(host, error).is_unspecified() && !error;
}

bool is_loopback_host(const std::string& host) {
  return host == "localhost" || parse_address(host).is_loopback();
}

std::vector<OwnAddress> reachable_addresses() {
  // An interface that is up but has no cable keeps its address: IFF_RUNNING is the cable
  // (netdevice(7)).
  auto found = addresses_with(IFF_UP | IFF_RUNNING);
  std::erase_if(found, [](const auto& one) { return !is_of_use(one.interface, one.address); });
  return found;
}

Result<ip::address> only_address(const std::vector<OwnAddress>& known) {
  if (known.empty()) return ip::address(ip::address_v4::loopback());
  const auto& name = known.front().interface;
  if (std::ranges::all_of(known, [&](const auto& one) { return one.interface == name; })) {
    const auto four =
        std::ranges::find_if(known, [](const auto& one) { return one.address.is_v4(); });
    return four == known.end() ? known.front().address : four->address;
  }
  std::vector<std::string> names;
  for (const auto& one : known) {
    names.push_back(fmt::format("{} ({})", one.address.to_string(), one.interface));
  }
  return fail(Code::Usage, fmt::format("this node has several addresses and no default route, and "
                                       "nothing tells which of them the others reach: {}; give "
                                       "--local-addr",
                                       join(names, ", ")));
}

Result<ip::address> outward_address(const ip::address& peer) {
  if (!peer.is_unspecified() && !peer.is_loopback()) {
    if (const auto own = own_address_towards(peer); own && !own->is_loopback()) return *own;
  }
  // The route to anywhere far away is the default route; nothing is sent there.
  for (const char* target : kFarAway) {
    if (const auto own = own_address_towards(ip::make_address(target))) return *own;
  }
  return only_address(reachable_addresses());
}

Result<Endpoint> parse_endpoint(std::string_view text, std::uint16_t default_port) {
  const auto found = parse_host_port(text);
  if (found) return Endpoint{found->host, found->port.value_or(default_port)};
  const std::string_view whole = trim(text);
  if (found.error() == HostPortFault::Port) {
    return fail(Code::Usage, fmt::format("'{}' has no valid port: a number up to 65535 is expected "
                                         "after the colon",
                                         whole));
  }
  return fail(Code::Usage,
              fmt::format("'{}' has no valid host: a host name, an IPv4 address, or an IPv6 "
                          "address in brackets is expected before the port",
                          whole));
}

std::string format_endpoint(std::string_view host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  // Brackets, or the last group of an IPv6 address could be read as the port (RFC 3986, 3.2.2).
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

ip::address plain(const ip::address& address) {
  // A socket that listens on "::" tells of IPv4 peers as ::ffff:a.b.c.d (ipv6(7)); compared with
  // the address that a user has typed, that would be another machine.
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return ip::make_address_v4(ip::v4_mapped, address.to_v6());
  }
  return address;
}

ip::address parse_address(std::string_view host) {
  boost::system::error_code error;
  const auto address = ip::make_address(std::string(host), error);
  // No address, which a host name is not, reads as 0.0.0.0: callers ask is_unspecified().
  return error ? ip::address() : plain(address);
}

ip::address from_sockaddr(const sockaddr* raw) {
  ip::udp::endpoint known;
  if (raw->sa_family != AF_INET && raw->sa_family != AF_INET6) return {};
  std::memcpy(known.data(), raw,
              raw->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return known.address();
}

std::vector<ip::address> own_addresses() {
  std::vector<ip::address> found;
  for (const auto& one : addresses_with(IFF_UP)) found.push_back(one.address);
  return found;
}

bool is_own_address(const ip::address& address) {
  const ip::address wanted = plain(address);
  if (wanted.is_loopback()) return true;
  return std::ranges::any_of(own_addresses(), [&](const ip::address& own) {
    // The scope of a link-local address is a number of this machine only: compare without it.
    if (own.is_v6() && wanted.is_v6()) return own.to_v6().to_bytes() == wanted.to_v6().to_bytes();
    return own == wanted;
  });
}

Result<ip::address> own_address_towards(const ip::address& target) {
  const UniqueFd socket(
      ::socket(target.is_v4() ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return std::unexpected(errno_error(Code::Io, "cannot make a socket", errno));
  // Connecting a datagram socket only asks the routing table (connect(2)); any port will do.
  const ip::udp::endpoint peer(target, 9);
  if (::connect(socket.get(), peer.data(), static_cast<socklen_t>(peer.size())) != 0) {
    return std::unexpected(
        errno_error(Code::Io, fmt::format("no route to {}", target.to_string()), errno));
  }
  ip::udp::endpoint own;
  auto size = static_cast<socklen_t>(own.capacity());
  if (::getsockname(socket.get(), own.data(), &size) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot read the own address", errno));
  }
  return plain(own.address());
}

}  // namespace elastrun::net
