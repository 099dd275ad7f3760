// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/leave_taking.hpp"
#include "rendezvous/state.hpp"

#include <algorithm>
#include <map>
#include <string>

namespace elastrun::rendezvous {

/// Worlds that may be at work, and nodes that leave, of jobs of which nobody is here, by run id.
class Doubts {
 public:
  /// An earlier coordinator's.
  void inherit(const std::string& run_id, const Past& past, TimePoint until,
               const Leavers& leavers) {
    doubts_[run_id] = {past, until, leavers};
  }
  /// One whose last agent has gone.
  void keep(const State& state, TimePoint now) {
    pass(now);
    const Clearance& clearance = state.clearance();
    if (!clearance.in_doubt(now)) return;
    doubts_[state.run_id()] = {
        {state.round_number(), 0, 0},
        *clearance.limit(),
        {clearance.leavers(), clearance.leavers_limit().value_or(TimePoint())}};
  }
  /// No world of them is at work any more. Of those who leave only time says that.
  void disinherit(TimePoint now) {
    for (auto& [run_id, doubt] : doubts_) doubt.until = std::min(doubt.until, now);
    pass(now);
  }
  /// Agents of it have come.
  void hand_to(State& state) const {
    const auto found = doubts_.find(state.run_id());
    if (found == doubts_.end()) return;
    state.inherit(found->second.past, found->second.until, found->second.leavers);
  }
  /// With those of jobs that are there.
  Leavers with_leavers_of(const Jobs& jobs) const {
    Leavers all = leavers_of(jobs);
    for (const auto& [run_id, doubt] : doubts_) {
      if (jobs.contains(run_id)) continue;
      all = {all.count + doubt.leavers.count, std::max(all.until, doubt.leavers.until)};
    }
    return all;
  }

 private:
  struct Doubt {
    Past past;
    TimePoint until;
    Leavers leavers;
  };
  void pass(TimePoint now) {
    std::erase_if(doubts_, [now](const auto& one) {
      return one.second.until <= now && !one.second.leavers.are_at_work(now);
    });
  }

  std::map<std::string, Doubt> doubts_;
};

}  // namespace elastrun::rendezvous
