// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <string>

namespace elastrun::store {

/// Who listens on this TCP port of our network namespace: "process 4242 (python train.py)". Empty
/// if that cannot be seen: another user's process, another container. Reads /proc/net/tcp{,6} and
/// the descriptors of the processes we may look into; bounded to some 100 ms on a large machine.
std::string find_port_owner(std::uint16_t port);

/// "10.0.0.7:4711", IPv4 as such also on a socket of both families.
std::string show(const boost::asio::ip::tcp::endpoint& endpoint);
/// The other end of a connection.
std::string show_peer(int fd);

/// A listening, non-blocking TCP socket. `address` is a number in IPv4 or IPv6 form, "localhost"
/// for 127.0.0.1, or "" and "::" for every address of both families (IPv4 alone where the kernel
/// has no IPv6). Names are not looked up. Accepted connections inherit TCP_NODELAY. Fails with
/// Store and a sentence that says what to do.
Result<UniqueFd> open_listening(const std::string& address, std::uint16_t port);

/// From now on the kernel ends this connection of such a listener 15 s after the other machine was
/// heard last. No error if it is none.
void probe_peer_soon(int socket);

}  // namespace elastrun::store
