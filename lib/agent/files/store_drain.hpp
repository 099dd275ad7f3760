// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/round/round_store.hpp"
#include "core/awake_clock.hpp"
#include "core/clock.hpp"

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <memory>

namespace elastrun::agent {

/// At the end of a node that has served the store of a round: workers of the other nodes may be
/// saving, with the help of the store. It stays until they have hung up, after its own processes
/// have ended and all has been told that it has to tell.
class StoreDrain {
 public:
  /// The loop must have been stopped. Borrows both.
  StoreDrain(boost::asio::io_context& loop, Clock& clock)
      : loop_(loop), clock_(clock), alarm_(clock_.make_alarm()) {}

  /// Runs the loop until the last visitor has gone, or `limit` is over: not at all without one. In
  /// one log line if that takes long.
  void wait(RoundStore& store, Duration limit);
  bool waiting() const { return waiting_; }
  /// A signal asks for the end, or (`insisted`) asks again: then the visitors lose the store.
  void hear_signal(bool insisted);

 private:
  void look();

  boost::asio::io_context& loop_;
  AwakeClock clock_;
  const std::unique_ptr<Alarm> alarm_;
  RoundStore* store_ = nullptr;
  TimePoint since_, until_;
  bool waiting_ = false, told_ = false;
};

}  // namespace elastrun::agent
