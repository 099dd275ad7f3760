// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/phase.hpp"

#include <cstddef>

namespace elastrun::rendezvous {

/// Whether it is the coordinator that is cut off, rather than its members: since the last world
/// more of them have been lost to silence than agents are left. Those who were lost then form the
/// larger part, and could go on if another leader was elected among them. Pure.
class LostContact {
 public:
  /// An agent has been silent for too long; whether it is the coordinator that is cut off.
  /// `before`: the phase of its job until then. `left`: agents that are connected still, the
  /// coordinator's own included.
  bool silent(Phase before, std::size_t left) {
    // A world that is complete has forgotten those who were lost before it was formed.
    if (before != Phase::Joining) lost_ = 0;
    ++lost_;
    return before == Phase::Joining && lost_ > left;
  }
  /// An agent has come, or come back.
  void came() { lost_ -= lost_ > 0 ? 1 : 0; }

 private:
  std::size_t lost_ = 0;
};

}  // namespace elastrun::rendezvous
