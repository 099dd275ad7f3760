// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
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

}  // namespace elastrun::net
