// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/coordinator.hpp"
#include "rendezvous/election_entry.hpp"
#include "rendezvous/predecessor.hpp"

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
  /// The note that belongs into the ballot.
  const std::string& text() const { return text_; }
  /// Tells the coordinator what may be at work until then, or is over, and finds out what is gone.
  void inherit(const std::string& note, Coordinator& coordinator, TimePoint until);
  /// Whether the note that was found, and that nothing has replaced, tells of a job that is over.
  bool tells_of_end() const { return tells_of_end_; }
  /// Whether somebody else has noted a world meanwhile.
  bool is_strange(const std::string& note) const;
  void stop();

 private:
  const std::string nonce_;
  Predecessor predecessor_;
  WorldNote latest_;
  std::string text_;
  std::function<void()> noted_;
  bool tells_of_end_ = false;
};

}  // namespace elastrun::rendezvous
