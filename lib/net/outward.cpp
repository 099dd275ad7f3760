// SPDX-License-Identifier: Apache-2.0
#include "net/outward.hpp"

#include "core/text.hpp"
#include "net/endpoint.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>

namespace elastrun::net {
namespace {

namespace ip = boost::asio::ip;

// Documentation addresses (RFC 5737, RFC 3849): routed like any other that is far away.
constexpr const char* kFarAway[] = {"192.0.2.1", "2001:db8::1"};

bool is_of_use(const std::string& interface, const ip::address& address) {
  if (address.is_unspecified() || address.is_loopback() || address.is_multicast()) return false;
  // Bridges within a machine, where each node has the same address.
  if (interface.starts_with("docker") || interface.starts_with("virbr")) return false;
  if (address.is_v6()) return !address.to_v6().is_link_local();
  // Link-local addresses (RFC 3927) are made up where no DHCP server answers, and reach no router.
  return (address.to_v4().to_uint() >> 16) != 0xA9FE;  // 169.254/16
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
  std::vector<OwnAddress> found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  // An interface that is up but has no cable keeps its address: IFF_RUNNING is the cable
  // (netdevice(7)).
  constexpr unsigned kNeeded = IFF_UP | IFF_RUNNING;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & kNeeded) != kNeeded) continue;
    const auto address = from_sockaddr(at->ifa_addr);
    if (is_of_use(at->ifa_name, address)) found.push_back({at->ifa_name, address});
  }
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

}  // namespace elastrun::net
