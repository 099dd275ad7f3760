// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "core/clock.hpp"
#include "files/blocking_calls.hpp"
#include "process/guardian.hpp"
#include "runs/run_registry.hpp"
#include "spec/job_spec.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <string>

namespace elastrun::agent {

/// Registers this run where `elastrunctl status` and `logs` find it, and keeps the entry current.
/// The file is written once things have stood for a moment: a launch waits for nothing, a short job
/// never registers, and a storm of restarts costs a file now and then. That it cannot be written
/// costs a debug line, never the job. ELASTRUN_RUNTIME_DIR may lie on a network file system, so a
/// separate thread writes and removes the file.
class RunRegistration final : public Observer {
 public:
  struct Facts {
    std::string agent_id;  // ELASTRUN_AGENT_ID of the workers
    bool keeps_output = false;
    std::function<std::string()> run_directory;
    std::function<std::string()> channel;  // its path
  };
  /// Borrows all. The guardian removes the entry of an agent that was killed.
  RunRegistration(const boost::asio::any_io_executor& loop, Clock& clock, guardian::Agent& guardian,
                  const spec::JobSpec& spec, Facts facts);
  ~RunRegistration() override { end(); }

  void phase(Phase phase, TimePoint now) override;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
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

  Clock& clock_;
  guardian::Agent& guardian_;
  const std::function<std::string()> run_directory_, channel_;
  const bool several_nodes_;
  const std::unique_ptr<Alarm> soon_;
  bool awaited_ = false, writing_ = false, changed_ = false, ended_ = false, said_ = false;
  std::string remembered_;  // by the guardian
  runs::RunEntry entry_;
  std::shared_ptr<runs::Registration> registration_;  // made with the first call; its thread's
  files::BlockingCalls calls_;
};

}  // namespace elastrun::agent
