// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/endpoint.hpp"

#include <boost/asio/ip/address.hpp>
#include <string>

namespace elastrun::rendezvous {

/// What to say of one who takes connections at `endpoint`, seen as `remote`, and says nothing: the
/// port may be that of a program which has nothing to do with us. It is named if it runs on this
/// machine and may be seen.
std::string silent_port_text(const net::Endpoint& endpoint, const boost::asio::ip::address& remote);

}  // namespace elastrun::rendezvous
