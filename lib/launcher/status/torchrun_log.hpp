// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "spec/job_spec.hpp"

namespace elastrun::agent {

/// Writes what torchrun's agent writes into its log at these moments (torchrun-parity 4.4, 4.5), in
/// its words: people and tools look for them.
class TorchrunLog final : public Observer {
 public:
  /// Borrows the spec.
  explicit TorchrunLog(const spec::JobSpec& spec) : spec_(spec) {}

  /// What is to be run.
  void launching() const;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void failed(const workers::Judgement& judgement) override;
  void restarting(const rendezvous::Restart& order) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;
  void phase(Phase phase, TimePoint now) override;

 private:
  const spec::JobSpec& spec_;
};

}  // namespace elastrun::agent
