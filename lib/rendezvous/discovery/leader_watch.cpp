// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/leader_watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace elastrun::rendezvous {
namespace {

// How long a place that did not answer is not given again, unless something changes.
constexpr auto kSecondLook = std::chrono::seconds(1);
// That of the agents of a large job, which all wait for the same end.
constexpr auto kLongestLook = std::chrono::seconds(5);

}  // namespace

LeaderWatch::LeaderWatch(Clock& clock, LeaderLease& lease)
    : lease_(lease), clock_(clock), second_look_(clock.make_alarm()), interval_(kSecondLook) {}

void LeaderWatch::wait(std::function<void()> changed, std::function<void()> look_again) {
  if (!std::exchange(waiting_, true)) lease_.watch(std::move(changed));
  second_look_->arm(clock_.now() + interval_, std::move(look_again));
  interval_ = std::min<Duration>(interval_ * 2, kLongestLook);
}

void LeaderWatch::stop() {
  second_look_->disarm();
  if (std::exchange(waiting_, false)) lease_.unwatch();
}

void LeaderWatch::forget_intervals() {
  interval_ = kSecondLook;
}

}  // namespace elastrun::rendezvous
