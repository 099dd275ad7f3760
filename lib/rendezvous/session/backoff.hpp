// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <random>

namespace elastrun::rendezvous {

/// How long to wait before the next attempt to connect, and when to stop trying. Pure but
/// for its seed. The waits grow from 10 ms to half a second and are drawn at random within a factor
/// of two, so that thousands of agents that lost one coordinator do not come back in step.
class Backoff {
 public:
  explicit Backoff(std::uint32_t seed) : random_(seed) {}
  /// From now on, for so long.
  void begin(TimePoint now, Duration time) {
    since_ = now;
    time_ = time;
    wait_ = std::chrono::milliseconds(10);
  }
  /// For so long in all, if that is longer.
  void extend(Duration time) { time_ = std::max(time_, time); }
  bool over(TimePoint now) const { return now >= deadline(); }
  TimePoint deadline() const { return since_ + time_; }
  Duration time() const { return time_; }
  Duration next() {
    const auto drawn = std::uniform_real_distribution<double>(0.5, 1.0)(random_);
    const auto wait = std::chrono::duration_cast<Duration>(wait_ * drawn);
    wait_ = std::min<Duration>(wait_ * 3 / 2, std::chrono::milliseconds(500));
    return wait;
  }

 private:
  std::minstd_rand random_;
  TimePoint since_;
  Duration time_{};
  Duration wait_ = std::chrono::milliseconds(10);
};

}  // namespace elastrun::rendezvous
