// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/coordinator/leave_taking.hpp"
#include "rendezvous/membership/state.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Worlds that may be at work, and nodes that leave, of jobs of which nobody is here, by run id.
class FencedJobs {
 public:
  /// An earlier coordinator's: as `inherit` of the state.
  void inherit(const std::string& run_id, const PreviousWorld& previous, TimePoint until,
               MemberFence fence) {
    fenced_jobs_[run_id] = {previous, until, std::move(fence), previous.id};
  }
  /// One whose last agent has gone.
  void keep(const State& state, TimePoint now) {
    const WorldFence& world_fence = state.world_fence();
    if (!world_fence.is_up(now)) return;
    const PreviousWorld last = state.last_world();
    // The first who is back proves that the world has broken up; the others may be saving.
    MemberFence fence = world_fence.fence;
    fence.expect(last.id, last.nodes, 0);
    fenced_jobs_[state.run_id()] = {
        {last.id, 0, last.nodes}, *world_fence.limit(), std::move(fence), world_fence.world()};
  }
  /// No world of them is at work any more. Of those who leave only time says that, and of members
  /// that are not heard, `left`.
  void disinherit(Duration left, TimePoint now) {
    for (auto& [run_id, doubt] : fenced_jobs_) {
      doubt.until = std::min(doubt.until, now);
      doubt.fence.begin(now, now + left);
    }
  }
  /// Those of which nothing is at work any more are forgotten: their run ids.
  std::vector<std::string> pass(TimePoint now) {
    std::vector<std::string> over;
    std::erase_if(fenced_jobs_, [&](const auto& one) {
      const bool pending = one.second.is_pending(now);
      if (!pending) over.push_back(one.first);
      return !pending;
    });
    return over;
  }
  /// Agents of it have come.
  void hand_to(State& state) {
    const auto found = fenced_jobs_.find(state.run_id());
    if (found == fenced_jobs_.end()) return;
    const Doubt& doubt = found->second;
    state.inherit(doubt.previous, doubt.until, doubt.fence, doubt.at_work);
    fenced_jobs_.erase(found);
  }
  bool are_any(TimePoint now) const {
    return std::ranges::any_of(fenced_jobs_,
                               [now](const auto& one) { return one.second.is_pending(now); });
  }
  /// With those of jobs that are there.
  Leavers with_leavers_of(const Jobs& jobs) const {
    Leavers all = leavers_of(jobs);
    for (const auto& [run_id, doubt] : fenced_jobs_) all.add(doubt.fence.leavers());
    return all;
  }

 private:
  struct Doubt {
    bool is_pending(TimePoint now) const {
      return now < until || now < fence.limit().value_or(now);
    }
    PreviousWorld previous;
    TimePoint until;
    MemberFence fence;
    WorldId at_work;  // which one may be
  };

  std::map<std::string, Doubt> fenced_jobs_;
};

}  // namespace elastrun::rendezvous
