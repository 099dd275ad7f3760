// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/election/election_entry.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// Finds out whether the world that an earlier coordinator recorded has ended, when no member of it
/// joins. The agent of group rank 0 holds the port of its store as long as it lives, whether
/// anybody listens there or not; so if it was on this machine, and the port is free, that agent is
/// gone.
///
/// Nothing can be proved of another machine. That it refuses a connection says the same as a
/// firewall that rejects it, and as a port that is held for a worker which does not listen yet.
class PreviousWorldProbe {
 public:
  explicit PreviousWorldProbe(Clock& clock);
  /// Runs `gone` on the loop if that is so, also when it becomes so later.
  void probe(const RecordedWorld& recorded, std::function<void()> gone);
  void stop();

  /// This machine's network as no other one has it: its addresses are the same only there.
  static std::string own_network();

 private:
  void look();

  Clock& clock_;
  const std::unique_ptr<Alarm> again_;
  std::uint16_t port_ = 0;
  std::function<void()> gone_;
};

}  // namespace elastrun::rendezvous
