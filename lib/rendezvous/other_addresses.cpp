// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/other_addresses.hpp"

#include "net/endpoint.hpp"

namespace elastrun::rendezvous {

std::vector<std::string> other_addresses(const std::string& address) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> found;
  for (const auto& own : net::own_addresses()) {
    if (own.is_loopback() || (own.is_v6() && own.to_v6().is_link_local())) continue;
    if (own.to_string() != address && found.size() < kMost) found.push_back(own.to_string());
  }
  return found;
}

}  // namespace elastrun::rendezvous
