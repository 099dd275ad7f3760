// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>

namespace elastrun::rendezvous {

/// The time by which agents order their journals, as the coordinator tells it: the wall clock at
/// construction plus the steady clock since. Setting the machine's clock moves no journal.
class UnsetClock {
 public:
  explicit UnsetClock(const Clock& clock)
      : clock_(clock), ahead_(clock.wall().time_since_epoch() - clock.now().time_since_epoch()) {}
  /// Nanoseconds since the epoch.
  std::int64_t now() const { return (clock_.now().time_since_epoch() + ahead_).count(); }

 private:
  const Clock& clock_;
  const Duration ahead_;
};

}  // namespace elastrun::rendezvous
