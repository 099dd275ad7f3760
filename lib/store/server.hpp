// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::store {

/// The workers' store: a TCPStore server (current protocol, and that of torch 1.13) for one round.
/// Made by the agent of group rank 0, filled by workers; each round gets a fresh one.
///
/// Runs wholly on the given loop, never looks up a name, and treats every byte as hostile: limits
/// of torchrun-parity 7.1, half messages, silent peers and peers that never read hurt only
/// themselves. Destroying it closes the listener and all connections at once.
class Server {
 public:
  struct Settings {
    std::size_t max_connections = 65536;
    /// Bytes of unread answers a peer may let pile up before it is cut off.
    std::size_t max_backlog = 64u << 20;
    /// Bytes that one peer is sent before the others have their turn.
    std::size_t send_per_turn = 8u << 20;
    /// Connections wait, unread, until allow_peers() says whom to serve.
    bool awaits_peers = false;
    /// Called when another client says that it has connected, as torch's do before anything else
    /// unless told not to wait for the others, with the number of those that have. It must not
    /// call the server.
    std::function<void(std::int64_t)> on_join{};
    /// Called before a request that changes what is stored. It must not call the server.
    std::function<void()> on_change{};
  };
  struct Statistics {
    std::uint64_t accepted = 0, refused = 0, requests = 0, cut_off = 0;
    std::size_t connections = 0, keys = 0;
  };

  /// Listens on `address`:`port` (port 0: any free one). Fails with Store; "address in use" says
  /// who owns the port where that can be seen.
  static Result<std::unique_ptr<Server>> listen(boost::asio::io_context& loop,
                                                const std::string& address, std::uint16_t port,
                                                Settings settings);
  virtual ~Server() = default;

  virtual std::uint16_t port() const = 0;
  /// Who comes from now on waits for start_afresh() and allow_peers(); those who are connected are
  /// served as before.
  virtual void hold_newcomers() = 0;
  /// Closes the connections of machines that are gone without a word within 15 s from now on,
  /// rather than within two minutes. Only for the last round: a machine that is merely frozen for
  /// longer loses its connection, too.
  virtual void look_for_dead_peers() = 0;
  /// A new key space for a new round on the same port: all connections are closed, all keys gone.
  /// Until allow_peers() connections wait, if the settings say so.
  virtual void start_afresh() = 0;
  /// Only peers with these addresses are served from now on, all if there are none; others are
  /// closed and logged.
  virtual void allow_peers(std::vector<boost::asio::ip::address> addresses) = 0;
  virtual Statistics statistics() const = 0;
  /// Takes over a connection accepted elsewhere, with the bytes already read from it (a
  /// listener that tells protocols apart by their first bytes).
  virtual void adopt(boost::asio::ip::tcp::socket socket, std::string first_bytes) = 0;
};

/// The stores of a node, where it has any, for the acceptor of their connections. Borrowed.
struct Stores {
  Server* current = nullptr;  // of a round whose members may be at work
  Server* next = nullptr;     // of the one that is being formed
};

}  // namespace elastrun::store
