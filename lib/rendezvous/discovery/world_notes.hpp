// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/discovery/predecessor.hpp"
#include "rendezvous/election/election_entry.hpp"

#include <functional>
#include <string>

namespace elastrun::rendezvous {

/// What an elected coordinator writes into the ballot about its worlds, and makes of what an
/// earlier one has written.
class WorldNotes {
 public:
  explicit WorldNotes(Clock& clock);

  /// A world is to be noted; `noted` runs once that has been `recorded`. One at a time: a later one
  /// takes the place of one that is still to be recorded.
  void record(const WorldNote& world, std::function<void()> noted);
  void recorded();
  /// The job is over: whoever comes back late shall know.
  void conclude(const Done& verdict);
  /// Whether there is one that belongs into the ballot: a coordinator without a world of its own
  /// leaves there what it has found.
  bool has_any() const { return !latest_.by.empty(); }
  /// Its coordinator goes, and so many of its members are being stopped.
  void leave(const Leavers& stopping);
  /// It, with the members that leave and the time that they have left.
  std::string text(const Leavers& leavers) const;
  /// Tells the coordinator what may be at work for so long, or is over, and who leaves, and finds
  /// out what is gone.
  void inherit(const std::string& note, Coordinator& coordinator, Duration isolation);
  /// Whether the note that was found, and that nothing has replaced, tells of a job that is over.
  bool tells_of_end() const { return tells_of_end_; }
  /// Whether somebody else has noted a world meanwhile.
  bool is_strange(const std::string& note) const;
  void stop();

 private:
  Clock& clock_;
  const std::string nonce_;
  Predecessor predecessor_;
  NotedWorld latest_;
  std::function<void()> noted_;
  bool tells_of_end_ = false;
};

}  // namespace elastrun::rendezvous
