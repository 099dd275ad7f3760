// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "core/clock.hpp"
#include "logs/console.hpp"
#include "logs/layout.hpp"
#include "spec/job_spec.hpp"
#include "workers/channel.hpp"

#include <memory>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Shows on the status line what the agent does.
class StatusView final : public Observes<StatusView> {
 public:
  StatusView(logs::StatusLine& line, const spec::JobSpec& job);

  void on(const moment::PhaseChanged& seen) {
    status_.phase = phase_text(seen.phase);
    if (seen.phase == Phase::Joining && !several_nodes_) status_.phase = "starting";
    if (seen.phase == Phase::Joining || seen.phase == Phase::Waiting) status_.workers_up = 0;
    // None of them runs, and on 80 columns there must be room for where the others have to come.
    const bool meets = seen.phase == Phase::Joining && several_nodes_;
    status_.workers = meets ? 0 : workers_;
    if (meets) status_.detail = place_;
    over_ = seen.phase == Phase::Ended;
    if (over_) return line_.hide();
    line_.show(status_);
  }
  void on(const moment::Progress& seen) {
    if (over_) return;
    status_.detail = status_.workers == 0 && several_nodes_ ? place_ + seen.text : seen.text;
    line_.show(status_);
  }
  void on(const moment::RoundReady& seen) {
    status_.nodes = seen.round.group_world_size();
    if (status_.max_restarts) status_.restarts = *status_.max_restarts - seen.round.restarts_left;
    status_.detail.clear();
  }
  void on(const moment::Started& seen) {
    status_.workers_up = static_cast<int>(seen.group.size());
    line_.show(status_);
  }
  void on(const moment::Failed& seen) {
    status_.workers_up = workers_ - static_cast<int>(seen.judgement.failures.size());
    line_.show(status_);
  }
  void on(const moment::Restarting& seen) {
    if (status_.max_restarts) status_.restarts = *status_.max_restarts - seen.order.restarts_left;
    status_.detail = seen.order.cause.text;
  }
  void on(const moment::RoleRestarting& seen) { on(moment::Restarting{seen.order}); }
  void on(const HangSeen& seen) {
    status_.detail = hangs::hang_text(seen.hang->stacks);
    line_.show(status_);
  }
  // Of rank 0: the others are about there, too.
  void on(const moment::WorkerSaid& seen) {
    const auto step = workers::step_of(seen.said);
    if (over_ || seen.worker.rank != 0 || !step) return;
    status_.detail = fmt::format("step {}", *step);
    line_.show(status_);
  }
  void on(const moment::Ended&) { line_.hide(); }

 private:
  logs::StatusLine& line_;
  logs::StatusFacts status_;
  const bool several_nodes_;
  const std::string place_;  // where the nodes meet: "at node1:29400: "
  const int workers_;
  bool over_ = false;  // what workers said last may come later still
};

/// Says in the log what a node waits for that has not met the others: after ten seconds, then ever
/// more rarely. Without a status line, as under a scheduler, nothing else would until the wait has
/// failed.
class WaitingWarning final : public Observes<WaitingWarning> {
 public:
  /// Borrows the clock. `is_seen`: a status line says so all the time, but not what to do where
  /// the nodes are to meet at a loopback address.
  WaitingWarning(Clock& clock, const spec::JobSpec& job, bool is_seen);

  void on(const moment::PhaseChanged& seen);
  void on(const moment::Progress& seen) { text_ = seen.text; }

 private:
  void warn();

  Clock& clock_;
  const std::string unreachable_;
  const bool wanted_;
  const std::string endpoint_;
  std::string text_;              // what was last heard of the wait
  Duration pause_{};              // until the next one
  std::unique_ptr<Alarm> alarm_;  // set while it waits
};

class TorchrunLog;
class RunRegistration;

/// What others see of a run on this machine: the status line, torchrun's log lines, the warning of
/// a long wait, and the entry that elastrunctl finds.
class RunStatus {
 public:
  /// Borrows run, layout and channel. `agent_id`: ELASTRUN_AGENT_ID of the workers.
  RunStatus(RunContext& run, bool shows_line, const logs::Layout& layout,
            const workers::Channel& channel, std::string agent_id, bool keeps_output);
  ~RunStatus();
  logs::StatusLine& line() { return line_; }
  /// Hears the agent before the records do, so that its lines come before theirs.
  Observer& log();
  /// The others, in the order in which they are to hear it.
  std::vector<Observer*> observers();
  /// Removes the entry: after all files of the run are complete. Waits a second at most; where the
  /// file system does not answer by then, the guardian removes it.
  void end();

 private:
  logs::StatusLine line_;
  StatusView view_;
  std::unique_ptr<TorchrunLog> log_;
  WaitingWarning waiting_;
  std::unique_ptr<RunRegistration> registration_;
};

/// Says in torchrun's words what is to be run.
void say_launch(const spec::JobSpec& spec);

/// Kills what earlier runs of this user have left on this machine whose agents and guardians were
/// killed together, and says so. Waits a second at most, two where the directory of runs does not
/// answer; a tenth of a millisecond without such a run.
void end_dead_runs();

}  // namespace elastrun::agent
