// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/election/leader_lease.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace elastrun::rendezvous {

/// Waits for the end of a leader that does not answer. A second look now and then, at growing
/// intervals, finds out whether it answers after all.
class LeaderWatch {
 public:
  /// `lease` is borrowed.
  LeaderWatch(Clock& clock, LeaderLease& lease)
      : lease_(lease), clock_(clock), second_look_(clock.make_alarm()) {}

  /// Runs `changed` each time something may have changed in the register, and `look_again` once,
  /// after the next interval; both on the loop, until `stop`.
  void wait(std::function<void()> changed, std::function<void()> look_again) {
    if (!std::exchange(waiting_, true)) lease_.watch(std::move(changed));
    second_look_->arm(clock_.now() + interval_, std::move(look_again));
    interval_ = std::min<Duration>(interval_ * 2, kLongestLook);
  }
  void stop() {
    second_look_->disarm();
    if (std::exchange(waiting_, false)) lease_.unwatch();
  }
  /// A leader has answered: intervals begin at the shortest one again.
  void forget_intervals() { interval_ = kSecondLook; }

 private:
  // How long a place that did not answer is not given again, unless something changes.
  static constexpr Duration kSecondLook = std::chrono::seconds(1);
  // That of the agents of a large job, which all wait for the same end.
  static constexpr Duration kLongestLook = std::chrono::seconds(5);

  LeaderLease& lease_;
  Clock& clock_;
  const std::unique_ptr<Alarm> second_look_;
  Duration interval_ = kSecondLook;
  bool waiting_ = false;
};

}  // namespace elastrun::rendezvous
