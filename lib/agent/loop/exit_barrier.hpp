// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/fact.hpp"
#include "core/clock.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace elastrun::agent {

/// For how long a node that has finished waits for the others, and then, each second, whether they
/// still need it.
class ExitBarrier {
 public:
  using Post = std::function<void(std::int64_t round)>;

  /// `over` is called when it is time to ask (BarrierOver).
  ExitBarrier(Clock& clock, Duration time, Post over)
      : clock_(clock), time_(time), over_(std::move(over)), alarm_(clock.make_alarm()) {}

  void arm(std::int64_t round) {
    stays_ = 0;
    round_ = round;
    look_after(time_);
  }
  /// They do.
  void stay() {
    look_after(std::chrono::seconds(1));
    // At first they may have ended in the same moment, and the word of that is on its way.
    if (++stays_ != 2) return;
    log::warning("agent",
                 "The time of the exit barrier ({}) is over, but other nodes still work with the "
                 "rendezvous or the store that this node serves: it ends with the last of them",
                 format_duration(time_));
  }
  void disarm() { alarm_->disarm(); }

 private:
  void look_after(Duration time) {
    alarm_->arm(clock_.now() + time, [this] { over_(round_); });
  }

  Clock& clock_;
  const Duration time_;
  const Post over_;
  const std::unique_ptr<Alarm> alarm_;
  std::int64_t round_ = 0;
  int stays_ = 0;
};

}  // namespace elastrun::agent
