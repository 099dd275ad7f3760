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
  void heard(const Moment& one) override { dispatch(one, *this); }
  using Observer::on;
  void on(const moment::RoundReady& seen);
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::Ended& seen);
  void on(const moment::PhaseChanged& seen);

 private:
  const spec::JobSpec& spec_;
};

}  // namespace elastrun::agent
