// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/unique_fd.hpp"
#include "store/conversation.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

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
  ~Server() { close_all(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const { return port_; }
  /// Who comes from now on waits for start_afresh() and allow_peers(); those who are connected are
  /// served as before.
  void hold_newcomers();
  /// Closes the connections of machines that are gone without a word within 15 s from now on,
  /// rather than within two minutes. Only for the last round: a machine that is merely frozen for
  /// longer loses its connection, too.
  void look_for_dead_peers() {
    for (const Connection& each : connections_) probe_peer_soon(each.fd.get());
  }
  /// A new key space for a new round on the same port: all connections are closed, all keys gone.
  /// Until allow_peers() connections wait, if the settings say so.
  void start_afresh();
  /// Only peers with these addresses are served from now on, all if there are none; others are
  /// closed and logged.
  void allow_peers(std::vector<boost::asio::ip::address> addresses);
  Statistics statistics() const;
  /// Takes over a connection accepted elsewhere, with the bytes already read from it (a
  /// listener that tells protocols apart by their first bytes).
  void adopt(boost::asio::ip::tcp::socket socket, std::string first_bytes);

 private:
  struct Connection {
    UniqueFd fd;
    std::uint32_t serial = 0;  // tells events of an earlier connection of the same number
    std::uint32_t events = 0;  // that the poller watches for now
    bool finished = false;     // the peer sends no more
    bool unread = false;       // more is there, which the poller has told already
    bool unsent = false;       // the socket may have room, which the poller has told already
    bool warned = false;       // of a peer that does not read
  };

  Server(boost::asio::io_context& loop, UniqueFd listener, Settings settings);
  Status start();
  void start_exchange() {
    exchange_ = std::make_unique<Exchange>(settings_.on_join, settings_.on_change);
  }
  std::uint64_t tag_of(Peer peer) const {
    return std::uint64_t{connections_[peer].serial} << 32 | peer;
  }
  Status poll_for(int operation, int fd, std::uint32_t events, std::uint64_t tag);
  void await_events();
  void take_events();
  void ready(std::uint64_t tag, std::uint32_t events);
  template <class Work>
  void guard(Peer peer, Work work);
  void serve(Peer peer, std::uint32_t events);
  void accept_some();
  void accept_later(int error);
  void take_newcomers(bool now);
  bool welcome(const boost::asio::ip::tcp::endpoint& endpoint);
  Peer add(UniqueFd fd);
  void read(Peer peer, bool to_the_end);
  bool read_some(Peer peer, std::size_t& size);
  void flush_touched();
  void flush(Peer peer);
  bool send_some(Peer peer);
  void drained(Peer peer);
  void watch(Peer peer);
  void cut_off(Peer peer);
  void close(Peer peer);
  void close_all();

  UniqueFd listener_;
  const std::uint16_t port_;
  const Settings settings_;
  /// No request is read: a connection may belong to a worker of another node that is a little ahead
  /// of us, or to a stranger, and which of both is known only once allow_peers() says it.
  bool shut_;
  std::set<boost::asio::ip::address> allowed_;  // empty: all
  /// Came while it was shut, with what was read from it already.
  std::vector<std::pair<boost::asio::ip::tcp::socket, std::string>> early_;
  /// An epoll(7) set inside Asio's own: a thousand ready connections cost one turn of the loop and
  /// not a thousand queued operations, and an idle one costs the kernel's memory alone.
  boost::asio::posix::stream_descriptor poller_;
  boost::asio::steady_timer pause_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<Connection> connections_;  // by Peer
  std::vector<Peer> touched_;
  std::unique_ptr<char[]> buffer_;
  RateLimitedLog limited_{"store"};
  Statistics statistics_;
  std::uint64_t earlier_requests_ = 0;
  Lifetime lifetime_;
};

/// The stores of a node, where it has any, for the acceptor of their connections. Borrowed.
struct Stores {
  Server* current = nullptr;  // of a round whose members may be at work
  Server* next = nullptr;     // of the one that is being formed
};

}  // namespace elastrun::store
