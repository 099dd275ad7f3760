// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <chrono>
#include <random>

namespace elastrun::rendezvous {

/// How the agents that start, or see the same leader go, come one after the other. Most of them
/// then find a leader.
class Stagger {
 public:
  /// After how long this one of so many comes.
  Duration next(int nodes) {
    const auto most = std::min<Duration>(kEach * (nodes - 1), kLongest);
    return most * std::uniform_int_distribution<int>(0, 1000)(random_) / 1000;
  }

 private:
  static constexpr auto kEach = std::chrono::microseconds(250);  // for each other one
  static constexpr auto kLongest = std::chrono::seconds(1);
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace elastrun::rendezvous
