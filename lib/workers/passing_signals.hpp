// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"

#include <functional>
#include <map>
#include <string>
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

  /// True: the first of an order; ask is_for_workers() after kWait.
  bool heard(const process::SignalEvent& event, TimePoint now);
  bool is_for_workers(int number);

 private:
  struct Order {
    TimePoint since;
    bool by_agent = false, by_guardian = false;
    bool waits = false;
  };
  std::map<int, Order> orders_;
};

/// Whether a process catches, blocks or ignores a signal, and so does not die of it.
bool survives(pid_t pid, int signal, const std::string& proc = "/proc");

/// Those of a job that a passed signal is for: the trainers, as Summons finds them, and shells, as
/// far as they survive it.
process::ProcessTable receivers(const process::ProcessTable& job, const std::vector<pid_t>& workers,
                                int signal);

}  // namespace elastrun::workers
