// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "core/clock.hpp"
#include "spec/job_spec.hpp"

#include <memory>
#include <string>

namespace elastrun::agent {

/// Says in the log what a node waits for that has not met the others: after ten seconds, then ever
/// more rarely. Without a status line, as under a scheduler, nothing else would until the wait has
/// failed.
class WaitingWarning final : public Observer {
 public:
  /// Borrows the clock. `is_seen`: a status line says so all the time, but not what to do where
  /// the nodes are to meet at a loopback address.
  WaitingWarning(Clock& clock, const spec::JobSpec& job, bool is_seen);

  void phase(Phase phase, TimePoint now) override;
  void progress(const std::string& text) override { text_ = text; }

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

}  // namespace elastrun::agent
