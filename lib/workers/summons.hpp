// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"

#include <cstddef>
#include <deque>
#include <optional>
#include <set>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::workers {

/// Who is asked to end, and when. A trainer comes first and alone: what it has forked, such as the
/// workers of a DataLoader, dies of a signal for which the trainer wants to save a checkpoint, and
/// the trainer fails of that before it comes to save. What it has forked is asked when it has
/// ended, or when the time is nearly over.
/// A trainer is what a worker runs unless that is a wrapper; below a shell or timeout(1), the first
/// other process on each way down. Shells are asked together with it, so that they do not go
/// on with their scripts; timeout(1) is not, because it would tell its whole group.
///
/// It is shown what lives, asks `processes` what a process waits for, and names each process once.
class Summons {
 public:
  /// `workers`: their pids, which are their groups' numbers. `job`: what lives as the stop begins.
  /// What is begun later, at `now` as a start time, gets no signal but SIGKILL: the upload of a
  /// checkpoint that was saved because of the stop.
  Summons(const process::JobProcesses& processes, std::vector<pid_t> workers,
          const process::ProcessTable& job, std::uint64_t now);

  /// Of the workers' groups those whose turn it is. To be asked again when something has ended.
  process::ProcessTable next(const process::ProcessTable& job);
  /// The same below processes that have left the groups, `roots`, in place of them.
  process::ProcessTable below(const process::ProcessTable& roots, const process::ProcessTable& job);
  /// Below those of the workers' groups that were asked and go on to wait for a child, which they
  /// may have told or not, that child, if it wants to hear the signal (JobProcesses::leaves_to).
  process::ProcessTable waited_for(const process::ProcessTable& job);
  /// All of the workers' groups that have not been asked yet.
  process::ProcessTable rest(const process::ProcessTable& job);
  /// A worker has ended by a signal: it has begun nothing because of the stop, so all that it left
  /// was there before, even if it is too young to be known.
  void died_by_signal(pid_t worker) { mute_.insert(worker); }
  /// Some trainer is below a wrapper, so that its end is not that of a worker.
  bool any_wrapped() const { return any_wrapped_; }

 private:
  using Key = std::pair<pid_t, std::uint64_t>;  // pid and start time

  static Key key_of(const process::ProcessEntry& one) { return {one.pid, one.start_time}; }
  bool leads(pid_t pid) const;
  template <class Due>
  process::ProcessTable take(const process::ProcessTable& among, Due due);
  process::ProcessTable take_first(const process::ProcessTable& among,
                                   const process::ProcessTable& job,
                                   const std::vector<pid_t>& roots);

  const process::JobProcesses& processes_;
  const std::vector<pid_t> workers_;
  const std::uint64_t began_;
  std::set<Key> known_, told_;
  std::set<pid_t> trainers_;  // workers that are trainers themselves
  std::set<pid_t> mute_;      // workers that died by a signal
  bool any_wrapped_ = false;
};

/// Finds, among the processes `job`, the workers with the pids `workers` included, the uppermost of
/// those that stay in the session of a worker but have left its process group, if a process of the
/// group does nothing but wait for them, or the group is empty. A signal for the group does not
/// reach them: below a script that catches SIGTERM, `timeout 1h python train.py` is such a one.
///
/// Spared are sessions of their own, and what the group may still use: a service of a trainer that
/// saves its checkpoint, which waits for a disk and not for a child. `processes` tells the two
/// apart.
process::ProcessTable set_apart(const process::ProcessTable& job, const std::vector<pid_t>& workers,
                                const process::JobProcesses& processes);

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
