// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/coordinator/coordinator.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace elastrun::rendezvous {

/// Notices that no agent joins a leader that cannot form a world alone. An unreachable address
/// looks like nodes that have not been started yet, so this is told less and less often,
/// and not in the last three quarters of join_timeout.
class ArrivalWatch {
 public:
  /// `interval`: until it is told for the first time; it doubles each time, for as long as this
  /// object lives.
  ArrivalWatch(Clock& clock, const Rules& rules, Duration interval)
      : needs_others_(rules.min_nodes > 1),
        longest_(rules.join_timeout / 4),
        clock_(clock),
        alarm_(clock.make_alarm()),
        interval_(interval) {}

  /// Runs `on_no_arrival` on the loop each time that an interval ends with no agent but the
  /// leader's own, until `stop`. `coordinator` is borrowed until then.
  void start(const Coordinator& coordinator, std::function<void()> on_no_arrival) {
    if (!needs_others_ || interval_ > longest_) return;
    alarm_->arm(clock_.now() + interval_,
                [this, &coordinator, on_no_arrival = std::move(on_no_arrival)]() mutable {
                  if (coordinator.agents() < 2 && coordinator.is_needed()) {
                    interval_ *= 2;
                    on_no_arrival();
                  }
                  start(coordinator, std::move(on_no_arrival));
                });
  }
  void stop() { alarm_->disarm(); }

 private:
  const bool needs_others_;
  const Duration longest_;
  Clock& clock_;
  const std::unique_ptr<Alarm> alarm_;
  Duration interval_;
};

}  // namespace elastrun::rendezvous
