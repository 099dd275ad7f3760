// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/election/leader_lease.hpp"

#include <functional>
#include <memory>

namespace elastrun::rendezvous {

/// Waits for the end of a leader that does not answer. A second look now and then, at growing
/// intervals, finds out whether it answers after all.
class LeaderWatch {
 public:
  /// `lease` is borrowed.
  LeaderWatch(Clock& clock, LeaderLease& lease);

  /// Runs `changed` each time something may have changed in the register, and `look_again` once,
  /// after the next interval; both on the loop, until `stop`.
  void wait(std::function<void()> changed, std::function<void()> look_again);
  void stop();
  /// A leader has answered: intervals begin at the shortest one again.
  void forget_intervals();

 private:
  LeaderLease& lease_;
  Clock& clock_;
  const std::unique_ptr<Alarm> second_look_;
  Duration interval_;
  bool waiting_ = false;
};

}  // namespace elastrun::rendezvous
