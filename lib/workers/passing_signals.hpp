// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/job_processes.hpp"
#include "process/signals.hpp"

#include <cstddef>
#include <deque>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace elastrun::workers {

/// SIGUSR1 and SIGUSR2, where they do not end the job: by them batch systems announce its end, and
/// people ask trainers for a checkpoint. Tells what was sent to the launcher alone, and is to be
/// passed on to the workers, from what was sent to every process of the job, whose workers have
/// theirs: the second arrives at guardian and agent, the first at one of them. Pure.
class PassingSignals {
 public:
  /// How long the other one's may take. Once passed on, it may come ten seconds late.
  static constexpr Duration kWait = std::chrono::seconds(1);
  static constexpr std::size_t kMostOrders = 64;  // of ten seconds

  void heard(const process::SignalEvent& event, TimePoint now);
  /// When to ask for the next order of this signal; none: there is none to decide.
  std::optional<TimePoint> due(int number) const;
  /// Decides what is due: whether the workers are to get it.
  bool is_for_workers(int number, TimePoint now);

 private:
  /// Who signals every process of a job is one process; what comes from two is two orders.
  struct Order {
    int number;
    pid_t sender;
    TimePoint since;
    bool by_agent, by_guardian;
    bool waits = true;
  };
  std::deque<Order> orders_;  // the oldest first
};

/// Those of a job that a passed signal is for: the trainers, as Summons finds them, and shells, as
/// far as they survive it.
process::ProcessTable receivers(const process::JobProcesses& processes,
                                const std::vector<pid_t>& workers, int signal);

}  // namespace elastrun::workers
