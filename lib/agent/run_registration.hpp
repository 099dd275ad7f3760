// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/observer.hpp"
#include "core/clock.hpp"
#include "process/guardian.hpp"
#include "runs/registry.hpp"
#include "spec/job_spec.hpp"

#include <functional>
#include <memory>
#include <string>

namespace elastrun::agent {

/// Registers this run where `elastrunctl status` and `logs` find it, and keeps the entry current.
/// The file is written once things have stood for a moment: a launch waits for nothing, a short job
/// never registers, and a storm of restarts costs a file now and then. That it cannot be written
/// costs a debug line, never the job.
class RunRegistration final : public Observer {
 public:
  /// Borrows all. The guardian removes the entry of an agent that was killed.
  RunRegistration(Clock& clock, guardian::Agent& guardian, const spec::JobSpec& spec,
                  bool keeps_output, std::function<std::string()> run_directory);
  ~RunRegistration() override { end(); }

  void phase(Phase phase, TimePoint now) override;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
  /// Removes the entry: after all files of the run are complete.
  void end();

 private:
  void changed();
  void write();

  Clock& clock_;
  guardian::Agent& guardian_;
  const std::function<std::string()> run_directory_;
  const bool several_nodes_;
  const std::unique_ptr<Alarm> soon_;
  bool awaited_ = false, ended_ = false, said_ = false;
  std::string remembered_;  // by the guardian
  runs::RunEntry entry_;
  runs::Registration registration_;
};

}  // namespace elastrun::agent
