// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <optional>

namespace elastrun::rendezvous {

/// Whether those who refuse a node at the place of an elected coordinator are that one. Its entry
/// outlives a leader that has died, and meanwhile anybody may have its port: another job, a proxy,
/// the next owner of its address. What such a stranger says must not end a job that goes on
/// elsewhere. Only an entry that is still there after its life has been renewed since. Pure.
class Refusals {
 public:
  /// The one at the place of that epoch has refused this node. `entry_life`: how long an entry
  /// stands at most without being renewed.
  bool are_of_live_one(std::int64_t epoch, TimePoint now, Duration entry_life) {
    if (!first_ || epoch_ != epoch) epoch_ = epoch, first_ = now;
    return now - *first_ > entry_life;
  }
  /// It was taken in.
  void forget() { first_.reset(); }

 private:
  std::int64_t epoch_ = 0;
  std::optional<TimePoint> first_;
};

}  // namespace elastrun::rendezvous
