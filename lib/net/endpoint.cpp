// SPDX-License-Identifier: Apache-2.0
#include "net/endpoint.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <boost/asio/ip/udp.hpp>
#include <cctype>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace elastrun::net {
namespace {

namespace ip = boost::asio::ip;

Error bad_port(std::string_view endpoint) {
  return {Code::Usage, fmt::format("'{}' has no valid port: a number up to 65535 is expected "
                                   "after the colon",
                                   endpoint)};
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 && std::ranges::all_of(text, [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  }) && std::stoi(std::string(text)) < 65536;
}

bool is_host(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == ':' ||
           c == '-' || c == '%';
  });
}

/// Any of them: "::" is an address, too, the one to listen at.
bool is_ipv6(std::string_view text) {
  boost::system::error_code error;
  ip::make_address_v6(std::string(text), error);
  return !error;
}

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view text, std::uint16_t default_port) {
  const std::string_view whole = trim(text);
  if (whole.empty()) return Endpoint{"localhost", default_port};
  std::string_view host = whole, port;
  bool has_port = false;
  if (const auto close = whole.find(']'); whole.front() == '[' && close != std::string_view::npos) {
    host = whole.substr(1, close - 1);
    has_port = close + 1 < whole.size() && whole[close + 1] == ':';
    port = has_port ? whole.substr(close + 2) : "";
    if (!has_port && close + 1 < whole.size()) return std::unexpected(bad_port(whole));
  } else if (std::ranges::count(whole, ':') == 1) {
    const auto colon = whole.find(':');
    host = whole.substr(0, colon);
    port = whole.substr(colon + 1);
    has_port = true;
  }
  if (has_port && !is_port(port)) return std::unexpected(bad_port(whole));
  // More than one colon makes sense only in an IPv6 address.
  const bool v6 = host.find(':') != std::string_view::npos;
  if (!is_host(host) || (v6 && !is_ipv6(host.substr(0, host.find('%'))))) {
    return fail(Code::Usage,
                fmt::format("'{}' has no valid host: a host name, an IPv4 address, or an IPv6 "
                            "address in brackets is expected before the port",
                            whole));
  }
  return Endpoint{std::string(host), has_port
                                         ? static_cast<std::uint16_t>(std::stoi(std::string(port)))
                                         : default_port};
}

std::string format_endpoint(std::string_view host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

ip::address plain(const ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return ip::make_address_v4(ip::v4_mapped, address.to_v6());
  }
  return address;
}

ip::address parse_address(std::string_view host) {
  boost::system::error_code error;
  const auto address = ip::make_address(std::string(host), error);
  return error ? ip::address() : plain(address);
}

ip::address from_sockaddr(const sockaddr* raw) {
  if (raw->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(raw);
    return ip::address_v4(ntohl(v4->sin_addr.s_addr));
  }
  if (raw->sa_family != AF_INET6) return {};
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(raw);
  ip::address_v6::bytes_type bytes;
  std::copy_n(v6->sin6_addr.s6_addr, bytes.size(), bytes.begin());
  return ip::address_v6(bytes, v6->sin6_scope_id);
}

std::vector<ip::address> own_addresses() {
  std::vector<ip::address> found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) found.push_back(from_sockaddr(at->ifa_addr));
  }
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
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot read the own address", errno));
  }
  return plain(from_sockaddr(reinterpret_cast<const sockaddr*>(&own)));
}

}  // namespace elastrun::net
