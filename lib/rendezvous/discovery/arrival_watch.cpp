// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/arrival_watch.hpp"

#include <utility>

namespace elastrun::rendezvous {

ArrivalWatch::ArrivalWatch(Clock& clock, const Rules& rules, Duration interval)
    : needs_others_(rules.min_nodes > 1),
      longest_(rules.join_timeout / 4),
      clock_(clock),
      alarm_(clock.make_alarm()),
      interval_(interval) {}

void ArrivalWatch::start(const Coordinator& coordinator, std::function<void()> on_no_arrival) {
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

void ArrivalWatch::stop() {
  alarm_->disarm();
}

}  // namespace elastrun::rendezvous
