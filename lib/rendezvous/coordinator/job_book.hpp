// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/coordinator/job.hpp"
#include "rendezvous/coordinator/leave_taking.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Worlds that may be at work, and nodes that leave, of jobs without a connected agent, by run id.
class FencedJobs {
 public:
  /// An earlier coordinator's: as `inherit` of the state.
  void inherit(const std::string& run_id, const PreviousWorld& previous, TimePoint until,
               MemberFence fence) {
    fenced_jobs_[run_id] = {previous, until, std::move(fence), previous.id, previous.id.round};
  }
  /// One whose last agent has gone.
  void keep(const State& state, TimePoint now) {
    const WorldFence& world_fence = state.world_fence();
    if (!world_fence.is_up(now)) return;
    // By its own name, whatever higher number others have told of. The first who is back proves
    // that it has broken up; the others may be saving.
    const PreviousWorld last{state.past().last(), 0, state.past().last_size()};
    MemberFence fence = world_fence.fence;
    fence.expect_rest(last.id, last.nodes);
    fenced_jobs_[state.run_id()] = {last, *world_fence.limit(), std::move(fence),
                                    world_fence.world(), state.past().highest()};
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
    state.inherit(doubt.previous, doubt.until, doubt.fence, doubt.at_work, doubt.highest);
    fenced_jobs_.erase(found);
  }
  bool are_any(TimePoint now) const {
    return std::ranges::any_of(fenced_jobs_,
                               [now](const auto& one) { return one.second.is_pending(now); });
  }
  /// When the next one of them is over.
  std::optional<TimePoint> next_end() const {
    std::optional<TimePoint> next;
    for (const auto& [run_id, doubt] : fenced_jobs_) {
      next = std::min(next.value_or(doubt.end()), doubt.end());
    }
    return next;
  }
  /// With those of jobs that are there.
  Leavers with_leavers_of(const Jobs& jobs) const {
    Leavers all = leavers_of(jobs);
    for (const auto& [run_id, doubt] : fenced_jobs_) all.add(doubt.fence.leavers());
    return all;
  }

 private:
  struct Doubt {
    TimePoint end() const { return std::max(until, fence.limit().value_or(until)); }
    bool is_pending(TimePoint now) const { return now < end(); }
    PreviousWorld previous;
    TimePoint until;
    MemberFence fence;
    WorldId at_work;           // which one may be
    std::int64_t highest = 0;  // number of a round
  };

  std::map<std::string, Doubt> fenced_jobs_;
};

/// The jobs at a coordinator, and what it knows of those without a connected agent.
class JobBook {
 public:
  /// `settings` are borrowed, and may change. `before_deciding`: as for each job.
  JobBook(const Coordinator::Settings& settings, Clock& clock,
          std::function<void()> before_deciding);

  /// The job of that run id, which begins with its first agent.
  Job& open(const std::string& run_id, const Rules& rules, bool held);
  /// With its last agent the job is forgotten: the same run id may start again. But if its whole
  /// world was cut off, or a member may be saving, only after that is over.
  void forget(const Job& job);

  // See Coordinator
  void inherit(const PreviousWorld& previous, TimePoint until, MemberFence fence,
               const Leavers& leavers);
  void disinherit(Duration left);
  void conclude(const WorldId& last, const Done& verdict);
  std::optional<Done> verdict() const;
  /// Whether its job has failed without it: it has never met a coordinator, and is of the next
  /// start of the job, for which the verdict is not meant, as far as no scheduler says which one.
  bool is_over_for(const Hello& hello) const;
  Leavers leavers() const { return fenced_jobs_.with_leavers_of(jobs); }
  Remnant remnant() const;
  bool is_needed() const;
  bool is_fenced() const;
  std::string status() const;

  Jobs jobs;

 private:
  void forget_doubts();

  const Coordinator::Settings& settings_;
  Clock& clock_;
  const std::function<void()> before_deciding_;
  const TimePoint ready_at_;
  FencedJobs fenced_jobs_;
  const std::unique_ptr<Alarm> doubts_over_;
  std::optional<std::pair<WorldId, Done>> over_;  // an earlier job of this run id
  std::optional<Done> ended_;
};

}  // namespace elastrun::rendezvous
