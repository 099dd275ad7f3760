// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/coordinator/fenced_jobs.hpp"
#include "rendezvous/coordinator/job.hpp"
#include "rendezvous/coordinator/leave_taking.hpp"
#include "rendezvous/wire/messages.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace elastrun::rendezvous {

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
