// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/endpoint.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::net {

using Addresses = std::vector<boost::asio::ip::address>;

/// Names to addresses without ever blocking the loop. Numbers and "localhost" need no look-up; any
/// other name is looked up by getaddrinfo(3) on a detached thread: a name server that does not
/// answer cannot delay anything, not even the end of the program. (Asio's own resolver is joined
/// when the loop is destroyed, and so can hang there for half a minute.)
class Resolver {
 public:
  using Answer = std::function<void(Result<Addresses>)>;

  Resolver(boost::asio::io_context& loop, Clock& clock);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  /// Answers once on the loop, never inside this call; forgets an earlier question. Fails with Io
  /// (the name is not known) or Timeout. Destroying the resolver, or asking again, takes the answer
  /// away.
  void resolve(const std::string& host, Duration limit, Answer answer);
  void cancel();

 private:
  struct Question;
  boost::asio::io_context& loop_;
  std::unique_ptr<Alarm> alarm_;
  Clock& clock_;
  std::shared_ptr<Question> question_;
};

/// Connects to a host, trying its addresses one after another. An address that does not answer
/// within a second is left for the next one, if there is one (RFC 8305 in its simplest form).
class Dialer {
 public:
  using Answer = std::function<void(Result<boost::asio::ip::tcp::socket>)>;

  Dialer(boost::asio::io_context& loop, Clock& clock);
  ~Dialer() { cancel(); }
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  /// Answers once on the loop, never inside this call; one attempt at a time. The socket has no
  /// delay (TCP_NODELAY). The error names the host and what became of each address: Closed if the
  /// last of them refused, Timeout if no address answered within `limit`, Io otherwise.
  void dial(const Endpoint& endpoint, Duration limit, Answer answer);
  /// Takes the answer away.
  void cancel();

 private:
  void try_next();
  void ended(const boost::asio::ip::address& address, const boost::system::error_code& error);
  void give_up(Code code);

  boost::asio::io_context& loop_;
  Clock& clock_;
  Resolver resolver_;
  std::unique_ptr<Alarm> alarm_;

  // Of the attempt
  Endpoint endpoint_;
  TimePoint deadline_;
  Answer answer_;
  Addresses left_;
  std::vector<std::string> tried_;
  Code last_ = Code::Io;
  std::unique_ptr<boost::asio::ip::tcp::socket> socket_;
  // Connects that were called off complete later; they find another number.
  std::shared_ptr<unsigned> attempt_ = std::make_shared<unsigned>(0);
};

}  // namespace elastrun::net
