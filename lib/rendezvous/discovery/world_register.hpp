// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/election/election.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  void probe(const RecordedWorld& recorded, Then gone);
  void stop();

  /// This machine's network as no other one has it: its addresses are the same only there.
  static std::string own_network();

 private:
  void look();

  Clock& clock_;
  const std::unique_ptr<Alarm> again_;
  std::uint16_t port_ = 0;
  Then gone_;
};

/// What an elected coordinator writes beside its lease about its worlds, and makes of what an
/// earlier one has written.
class WorldRegister {
 public:
  explicit WorldRegister(Clock& clock);

  /// Asks for a world to be recorded; `done` runs once `recorded` is called. One at a time: a later
  /// one takes the place of one that is still to be recorded.
  void record(const WorldRecord& world, Then done);
  void recorded();
  /// The job is over: members that come back late must learn it.
  void conclude(const Done& verdict);
  /// Whether a record belongs beside the lease: a coordinator without a world leaves the one that
  /// it has found.
  bool has_any() const { return !latest_.by.empty(); }
  /// Its coordinator goes, and leaves that much of it.
  void leave(const Survivors& survivors);
  /// Members come back out of it: once that has taken a while, `write` is to record who has not.
  void watch_survivors(const Coordinator& coordinator, Then write);
  /// It, with what is left of it, the members that leave and the time that they have.
  std::string text(const Coordinator& coordinator);
  /// Tells the coordinator what may be at work for so long, or is over, and who leaves, and finds
  /// out what is gone.
  void inherit(const std::string& record, Coordinator& coordinator, Duration isolation);
  /// Whether the record that was found, and that nothing has replaced, tells of a job that is over.
  bool tells_of_end() const { return tells_of_end_; }
  /// Whether another leader has recorded a world since `inherit`.
  bool is_strange(const std::string& record) const;
  void stop();

 private:
  std::optional<Survivors> survivors_of(const Coordinator& coordinator) const;

  Clock& clock_;
  const std::string nonce_;
  PreviousWorldProbe probe_;
  RecordedWorld latest_;
  const std::unique_ptr<Alarm> look_;
  bool looks_ = false;
  std::optional<std::pair<int, int>> recorded_survivors_;  // members, and those at work
  std::string inherited_;
  Then recorded_;
  bool tells_of_end_ = false;
};

}  // namespace elastrun::rendezvous
