// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "net/dialer.hpp"
#include "rendezvous/election_entry.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>

namespace elastrun::rendezvous {

/// Finds out whether the world that an earlier coordinator has noted is no more, when nobody of it
/// comes: it asks for the store of group rank 0, whose port is open as long as that agent lives. A
/// machine that answers that nobody listens there has proved it; one that is silent proves nothing.
class Predecessor {
 public:
  Predecessor(boost::asio::io_context& loop, Clock& clock);
  /// Runs `gone` on the loop if that is so, also when it becomes so later.
  void investigate(const NotedWorld& noted, std::function<void()> gone);
  void stop();

  /// This machine's network as no other one has it: loopback addresses are the same only there.
  static std::string own_network();

 private:
  void ask();

  Clock& clock_;
  net::Dialer dialer_;
  const std::unique_ptr<Alarm> again_;
  net::Endpoint store_;
  std::function<void()> gone_;
};

}  // namespace elastrun::rendezvous
