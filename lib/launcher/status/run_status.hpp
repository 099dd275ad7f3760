// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "core/clock.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"
#include "logs/layout.hpp"
#include "runs/run_registry.hpp"
#include "spec/job_spec.hpp"
#include "workers/channel.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// Writes what torchrun's agent writes into its log at these moments (torchrun-parity 4.4, 4.5), in
/// its words: people and tools look for them.
class TorchrunLog final : public Observer {
 public:
  /// Borrows the spec.
  explicit TorchrunLog(const spec::JobSpec& spec) : spec_(spec) {}

  /// What is to be run.
  void launching() const;
  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::RoundReady& seen);
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::Ended& seen);
  void on(const moment::PhaseChanged& seen);

 private:
  const spec::JobSpec& spec_;
};

/// Registers this run where `elastrunctl status` and `logs` find it, and keeps the entry current.
/// The file is written once things have stood for a moment: a launch waits for nothing, a short job
/// never registers, and a storm of restarts costs a file now and then. That it cannot be written
/// costs a debug line, never the job. ELASTRUN_RUNTIME_DIR may lie on a network file system, so a
/// separate thread writes and removes the file.
class RunRegistration final : public Observer {
 public:
  /// Borrows run, layout and channel. `agent_id`: ELASTRUN_AGENT_ID of the workers. The guardian
  /// removes the entry of an agent that was killed.
  RunRegistration(RunContext& run, const logs::Layout& layout, const workers::Channel& channel,
                  std::string agent_id, bool keeps_output);
  ~RunRegistration() override { end(); }

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen);
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::Stopped& seen);
  /// Removes the entry: after all files of the run are complete. Waits a second at most; where the
  /// file system does not answer by then, the guardian removes it.
  void end();

  /// Kills what earlier runs of this user have left on this machine whose agents and guardians were
  /// killed together, and says so. Waits a second at most, two where the directory of runs does not
  /// answer; a tenth of a millisecond without such a run.
  static void end_dead_runs();

 private:
  void changed();
  void write();
  void written(const Status& written, const std::string& path);
  void remember(const std::string& path);

  RunContext& run_;
  const logs::Layout& layout_;
  const workers::Channel& channel_;
  const bool several_nodes_;
  const std::unique_ptr<Alarm> soon_;
  bool awaited_ = false, writing_ = false, changed_ = false, ended_ = false, said_ = false;
  std::string remembered_;  // by the guardian
  runs::RunEntry entry_;
  std::shared_ptr<runs::Registration> registration_;  // made with the first call; its thread's
  files::BlockingCalls calls_;
};

/// Shows on the status line what the agent does.
class StatusView final : public Observer {
 public:
  StatusView(logs::StatusLine& line, const spec::JobSpec& job);

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen);
  void on(const moment::Progress& seen);
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::RoleRestarting& seen) { on(moment::Restarting{seen.order}); }
  void on(const HangSeen& seen);
  void on(const moment::WorkerSaid& seen);
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
class WaitingWarning final : public Observer {
 public:
  /// Borrows the clock. `is_seen`: a status line says so all the time, but not what to do where
  /// the nodes are to meet at a loopback address.
  WaitingWarning(Clock& clock, const spec::JobSpec& job, bool is_seen);

  void heard(const Moment& one) override { dispatch(one, *this); }
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

/// What others see of a run on this machine: the status line, torchrun's log lines, the warning of
/// a long wait, and the entry that elastrunctl finds.
class RunStatus {
 public:
  /// See RunRegistration.
  RunStatus(RunContext& run, bool shows_line, const logs::Layout& layout,
            const workers::Channel& channel, std::string agent_id, bool keeps_output)
      : line_(run.clock, run.console, shows_line),
        view_(line_, run.spec),
        log_(run.spec),
        waiting_(run.clock, run.spec, line_.is_enabled()),
        registration_(run, layout, channel, std::move(agent_id), keeps_output) {}
  logs::StatusLine& line() { return line_; }
  /// Hears the agent before the records do, so that its lines come before theirs.
  TorchrunLog& log() { return log_; }
  /// The others, in the order in which they are to hear it.
  std::vector<Observer*> observers() { return {&view_, &waiting_, &registration_}; }
  /// After all files of the run are complete.
  void end() { registration_.end(); }

 private:
  logs::StatusLine line_;
  StatusView view_;
  TorchrunLog log_;
  WaitingWarning waiting_;
  RunRegistration registration_;
};

}  // namespace elastrun::agent
