// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/cgroup.hpp"
#include "process/guardian.hpp"
#include "process/posix_launcher.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

/// The cgroups of agents that were killed at the same moment as their guardians, which would have
/// emptied them. The next agent that makes one in the same place looks for them.
///
/// Each name says whose the cgroup is, but a process that /proc does not show need not be dead
/// (hidepid, no descriptor left, another time namespace). So the agent holds flock(2) on the
/// directory as long as it lives, which the kernel ends with it, and after it the guardian while it
/// sweeps: only a cgroup of which the lock is free is stale.
namespace elastrun::process {

struct EndedCgroups {
  std::vector<std::string> killed;  // names of those whose processes have been ended
  std::vector<std::string> stuck;   // in which some still are
};

/// Kills what is in stale cgroups below `parent`, and removes them; waits up to `limit` for all
/// together, and 50 ms. Leaves alone those of other users and other pid namespaces, and all where
/// locks cannot be had.
EndedCgroups end_stale_cgroups(const std::string& parent, Duration limit);

/// Keeps together all that the workers of this node start, so that an attempt can be ended as a
/// whole, also what called setsid(2), was orphaned twice, or emptied its environment.
///
/// Two means. Always: this process is a subreaper, so every orphan becomes its child and every
/// descendant can be found. And where our own cgroup v2 directory is writable (root, or delegated
/// by systemd or a container): a cgroup for each attempt, which is killed in one stroke. Nothing is
/// said where that is not so. Only descendants of this process are ever killed, and of its
/// children only those that it did not have before this object was made.
///
/// Reaps adopted orphans that end while the job runs, so that they do not pile up as zombies.
class Containment final : public JobProcesses {
 public:
  /// The three must outlive it; `guardian` may be null. Makes this process a subreaper.
  Containment(boost::asio::io_context& io, const PosixLauncher& launcher,
              guardian::Agent* guardian);
  Containment(const Containment&) = delete;
  Containment& operator=(const Containment&) = delete;
  /// Ends everything that is left, as end_attempt; does not wait again for what has outlived that.
  ~Containment() override;

  /// Children of this process that are not the job's, and what is below those: from now on they are
  /// left alone. `others` is asked whenever that matters; several add up.
  void spare(std::function<std::vector<pid_t>()> others) { others_.push_back(std::move(others)); }

  /// A fresh cgroup if possible. Ends the attempt before, if the caller forgot.
  void begin_attempt();
  /// For LaunchRequest::cgroup_fd; -1 without cgroup.
  int cgroup_fd() const { return cgroup_ ? cgroup_->fd() : -1; }
  /// Returns the next attempt's descriptor, made ahead: a process that is to become a worker of it
  /// may join now, and one that a call of spare() names lives on in it.
  int next_cgroup_fd();

  /// Costs one system call when none is there.
  ProcessTable leftovers() const override;
  ProcessTable processes() const override;
  /// `call` runs on the loop when a child of this process has ended, a worker or an orphan of one:
  /// time to look again at what is left.
  void on_child_end(std::function<void()> call) { on_child_end_ = std::move(call); }

  /// Kills every descendant but the launcher's children that still run and what is below those.
  /// An orphan of a running child cannot be told from one of an ended child and is killed as well:
  /// so call it when the workers are not to live on. Microseconds if nothing is left.
  KillResult sweep(Duration limit) override;
  /// Whether the last sweep could not end all.
  bool left_alive() const { return left_alive_; }
  /// SIGKILL for all at once, the workers too (which are then still to be awaited); not waiting.
  void kill_all();
  /// Waits for the workers' ends no more: kills all, then removes the cgroup. What outlives `limit`
  /// is in the answer, and left to the guardian.
  KillResult end_attempt(Duration limit);

 private:
  std::vector<pid_t> strangers() const;
  std::vector<pid_t> not_to_touch() const;
  void see_child_signal();
  void end_stale();
  void make_next();
  void drop(std::optional<Cgroup>& cgroup, Duration limit);

  // Set at construction.
  const PosixLauncher& launcher_;
  guardian::Agent* guardian_;
  const std::vector<pid_t> strangers_;  // children that are not the job's
  std::optional<std::string> parent_cgroup_;
  // Changes while running.
  std::optional<Cgroup> cgroup_, next_cgroup_;
  int made_ = 0;
  bool survivors_ = false;  // of the end of the last attempt
  bool left_alive_ = false;
  int hidden_orphans_ = 0;  // child signals since the process table was last read for zombies
  std::function<void()> on_child_end_;
  std::vector<std::function<std::vector<pid_t>()>> others_;
  SignalSource child_signals_;
};

}  // namespace elastrun::process
