// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/silent_port.hpp"

#include "store/port_owner.hpp"

#include <fmt/format.h>

namespace elastrun::rendezvous {

std::string silent_port_text(const net::Endpoint& endpoint,
                             const boost::asio::ip::address& remote) {
  const auto text =
      fmt::format("{} takes the connection, but does not answer as a coordinator does",
                  net::format_endpoint(endpoint.host, endpoint.port));
  if (!net::is_own_address(remote)) return text;
  const auto owner = store::find_port_owner(endpoint.port);
  return owner.empty() ? text : fmt::format("{}: {} listens there", text, owner);
}

}  // namespace elastrun::rendezvous
