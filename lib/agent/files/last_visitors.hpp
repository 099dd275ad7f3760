// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/round_store.hpp"
#include "core/awake_clock.hpp"
#include "core/clock.hpp"

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <memory>

namespace elastrun::agent {

/// At the end of a node that has served the store of a round: workers of the other nodes may be
/// saving, with the help of the store. It stays until they have hung up, after its own processes
/// have ended and all has been told that it has to tell.
class LastVisitors {
 public:
  /// The loop must have been stopped. Borrows both.
  LastVisitors(boost::asio::io_context& loop, Clock& clock)
      : loop_(loop), clock_(clock), alarm_(clock_.make_alarm()) {}

  /// Runs the loop until nobody is there, or `limit` is over: not at all if nobody is. In one log
  /// line if that takes long.
  void wait(RoundStore& store, Duration limit);
  bool waiting() const { return waiting_; }
  /// Somebody asks for the end, or (`insisted`) has done so before: then they are left alone.
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
