// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace elastrun::net {

/// Opens the port, with close-on-exec and past connections in TIME_WAIT. `host` is a numeric
/// address; "::" is every address, of IPv4 too, also where the kernel has no IPv6. Port 0: any that
/// is free. Fails with Io: address in use or not ours.
Status listen_at(boost::asio::ip::tcp::acceptor& acceptor, const std::string& host,
                 std::uint16_t port, int backlog);

/// accept4(2) without waiting: a descriptor, or -1 and errno.
int accept_now(boost::asio::ip::tcp::acceptor& acceptor);

/// The connection behind a descriptor of accept_now(), with TCP_NODELAY. Nothing, and `fd` closed,
/// if the loop cannot take it.
std::optional<boost::asio::ip::tcp::socket> accepted(boost::asio::ip::tcp::acceptor& acceptor,
                                                     int fd);

}  // namespace elastrun::net
