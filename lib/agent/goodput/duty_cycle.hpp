// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "system/machine.hpp"

#include <optional>

namespace elastrun::agent {

/// How long the accelerators of this node were busy, or where it has none its workers' processors,
/// by looks at the machine: from one to the next all of them were, or they were not. Pure.
class DutyCycle {
 public:
  /// Less is idle: what a driver, a display or a worker that waits takes.
  static constexpr double kIdle = 0.1;

  /// In the order of their times; one that came too late to be new changes nothing.
  void take(const system::MachineSample& sample);
  /// So far, until the last look; none before the second one.
  std::optional<Duration> busy() const;

 private:
  static bool is_busy(const system::MachineSample& sample);

  std::optional<TimePoint> last_;
  Duration busy_{};
  bool compared_ = false;
};

}  // namespace elastrun::agent
