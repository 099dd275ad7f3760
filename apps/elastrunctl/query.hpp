// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/dialer.hpp"
#include "net/endpoint.hpp"
#include "net/link.hpp"
#include "rendezvous/wire/messages.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

namespace elastrun::ctl {

/// One question to a coordinator, and its answer. Ends the loop.
class Query {
 public:
  /// Borrows loop and clock.
  Query(boost::asio::io_context& loop, Clock& clock, net::Endpoint endpoint,
        std::shared_ptr<const net::Sealer> sealer);

  /// `question` wants the status or stacks; a StatusText or StacksReport. Fails with Timeout, Io,
  /// Rendezvous or Protocol, and says what that means for the user.
  Result<rendezvous::FromCoordinator> ask(rendezvous::Hello question, Duration limit);

 private:
  void talk(boost::asio::ip::tcp::socket socket);
  void hear(const std::string& payload);
  void finish(Result<rendezvous::FromCoordinator> answer);
  std::string where() const { return net::format_endpoint(endpoint_.host, endpoint_.port); }
  std::string no_answer(const Error& error) const;
  std::string stranger() const;
  std::string silence() const;
  std::string ended(const Error& error) const;

  boost::asio::io_context& loop_;
  Clock& clock_;
  const net::Endpoint endpoint_;
  const std::shared_ptr<const net::Sealer> sealer_;
  net::Dialer dialer_;
  const std::unique_ptr<Alarm> alarm_;
  rendezvous::Hello question_;
  Duration limit_{};
  std::shared_ptr<net::Link> link_;
  bool connected_ = false;
  Result<rendezvous::FromCoordinator> answer_ =
      fail(Code::Internal, "the question was never asked");
};

/// Seals by the secret, or as the coordinator asks: a cluster's login node has MUNGE, too.
std::shared_ptr<const net::Sealer> sealer_for(boost::asio::io_context& loop,
                                              const std::string& secret);

}  // namespace elastrun::ctl
