// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>

namespace elastrun::rendezvous {

/// What a coordinator tells its agents, who put their journals in order by it: the wall clock as it
/// was when this was made, and the steady clock since. Whoever sets the clock of the machine moves
/// no journal.
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
