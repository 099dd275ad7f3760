// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/alternate_addresses.hpp"

#include "rendezvous/wire/message_parts.hpp"

namespace elastrun::rendezvous {

std::vector<std::string> alternate_addresses(const std::string& address,
                                             const std::vector<boost::asio::ip::address>& all) {
  std::vector<std::string> found;
  for (const auto& own : all) {
    // From another machine neither leads here.
    if (own.is_loopback() || (own.is_v6() && own.to_v6().is_link_local())) continue;
    if (own.to_string() != address && found.size() < kMaxAlternateAddresses) {
      found.push_back(own.to_string());
    }
  }
  return found;
}

}  // namespace elastrun::rendezvous
