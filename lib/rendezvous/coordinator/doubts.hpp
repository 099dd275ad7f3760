// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/coordinator/leave_taking.hpp"
#include "rendezvous/membership/state.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace elastrun::rendezvous {

/// Worlds that may be at work, and nodes that leave, of jobs of which nobody is here, by run id.
class Doubts {
 public:
  /// An earlier coordinator's: as `inherit` of the state.
  void inherit(const std::string& run_id, const Past& past, TimePoint until, Fence fence) {
    doubts_[run_id] = {past, until, std::move(fence)};
  }
  /// One whose last agent has gone.
  void keep(const State& state, TimePoint now) {
    pass(now);
    const Clearance& clearance = state.clearance();
    if (!clearance.in_doubt(now)) return;
    doubts_[state.run_id()] = {
        {state.last_world().round, 0, 0}, *clearance.limit(), clearance.fence};
  }
  /// No world of them is at work any more. Of those who leave only time says that.
  void disinherit(TimePoint now) {
    for (auto& [run_id, doubt] : doubts_) {
      doubt.until = std::min(doubt.until, now);
      doubt.fence.begin(now, now + kTimeToFollow);
    }
    pass(now);
  }
  /// Agents of it have come.
  void hand_to(State& state) {
    const auto found = doubts_.find(state.run_id());
    if (found == doubts_.end()) return;
    state.inherit(found->second.past, found->second.until, found->second.fence);
    doubts_.erase(found);
  }
  bool are_any(TimePoint now) const {
    return std::ranges::any_of(doubts_,
                               [now](const auto& one) { return one.second.is_pending(now); });
  }
  /// With those of jobs that are there.
  Leavers with_leavers_of(const Jobs& jobs) const {
    Leavers all = leavers_of(jobs);
    for (const auto& [run_id, doubt] : doubts_) all.add(doubt.fence.leavers());
    return all;
  }

 private:
  struct Doubt {
    bool is_pending(TimePoint now) const {
      return now < until || now < fence.limit().value_or(now);
    }
    Past past;
    TimePoint until;
    Fence fence;
  };
  void pass(TimePoint now) {
    std::erase_if(doubts_, [now](const auto& one) { return !one.second.is_pending(now); });
  }

  std::map<std::string, Doubt> doubts_;
};

}  // namespace elastrun::rendezvous
