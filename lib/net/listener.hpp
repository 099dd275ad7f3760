// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/unique_fd.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace elastrun::net {

/// Opens the port, not blocking, with close-on-exec and past connections in TIME_WAIT. "::" is
/// every address, of IPv4 too, also where the kernel has no IPv6. Port 0: any that is free. Fails
/// with an errno: address in use or not ours. `backlog` below 0 only holds the port: the kernel
/// never hands it out as a free one, yet a server that sets SO_REUSEADDR, too, may bind and listen
/// there (socket(7)). `prepare` sets the options that accepted sockets are to inherit, before the
/// first of them can be there.
std::expected<UniqueFd, int> listen_on(const boost::asio::ip::address& address, std::uint16_t port,
                                       int backlog, void (*prepare)(int socket) = nullptr);
/// The address and port of a socket.
boost::asio::ip::tcp::endpoint bound_to(int socket);

/// The protocol that a new connection to a shared port speaks.
enum class Protocol {
  Undecided,  // too few bytes so far
  Agent,      // elastrun's own protocol (frame.hpp)
  Store,      // a TCPStore client, of either protocol
  Unknown,
};

/// Tells by the first bytes: TCPStore queries begin with a byte of 0 to 31, ours with 0xE5 and the
/// rest of its magic.
Protocol recognise(std::string_view first_bytes);

/// One listening port for two protocols: agents and workers' store clients are told apart by their
/// first bytes and handed to the taker of that kind. Strangers, and kinds without a taker, are
/// closed with a line in the log. Or for one, whose taker gets each connection at once. All have
/// TCP_NODELAY.
class Listener {
 public:
  /// Gets the connection and the bytes already read from it.
  using Taker = std::function<void(boost::asio::ip::tcp::socket, std::string first_bytes)>;
  struct Takers {
    Taker agent{}, store{};
    Taker any{};  // of a port with one protocol
  };
  struct Settings {
    std::string address = "127.0.0.1";  // numeric; "::" is every address, of IPv4 too
    std::uint16_t port = 0;             // 0: any free one
    int backlog = 16384;                // thousands of agents connect at once; the kernel caps it
    /// A connection that says nothing that long is a 1.13 store client's second connection, if
    /// anybody takes stores, and a stranger otherwise.
    Duration time_limit = std::chrono::seconds(10);
    std::size_t max_undecided = 16384;
  };

  /// Listens from now on; takers are called on the loop. Fails with Io: address in use or not ours.
  static Result<std::unique_ptr<Listener>> open(boost::asio::io_context& loop, Clock& clock,
                                                Settings settings, Takers takers);
  Listener(const Listener&) = delete;
  ~Listener() { lifetime_.end(); }
  std::uint16_t port() const { return port_; }
  /// Takes stores from now on, or with {} no more.
  void take_stores(Taker taker) { takers_.store = std::move(taker); }

 private:
  struct Newcomer {
    boost::asio::ip::tcp::socket socket;
    std::string bytes;
    TimePoint deadline;
  };
  using Place = std::list<Newcomer>::iterator;

  Listener(boost::asio::io_context& loop, Clock& clock, Settings settings, Takers takers);
  void wait();
  void accept_all();
  void greet(int fd);
  void listen_to(Place place);
  void hand_over(Place place, Protocol protocol);
  void watch_first_bytes();

  Clock& clock_;
  const Settings settings_;
  Takers takers_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::uint16_t port_ = 0;
  std::list<Newcomer> newcomers_;
  const std::unique_ptr<Alarm> deadline_, relief_;
  RateLimitedLog limited_{"net"};
  // Completions outlive the listener; this tells them that it has gone.
  Lifetime lifetime_;
};

}  // namespace elastrun::net
