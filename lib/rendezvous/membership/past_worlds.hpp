// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/world_id.hpp"

#include <algorithm>
#include <cstdint>

namespace elastrun::rendezvous {

/// The worlds that a job has had, as far as anybody has told: which one was the last, whose members
/// have their places before all others, and which numbers of rounds are taken. Pure.
class PastWorlds {
 public:
  /// The last one, of whichever coordinator. While a round runs, that is this one.
  const WorldId& last() const { return last_; }
  int last_size() const { return last_size_; }
  /// Whether that was another coordinator's, who may have died with it.
  bool is_succession() const { return succession_; }

  /// The highest number that anybody has told of. An agent obeys no round that is not above those
  /// which it has been in, whatever their epochs.
  std::int64_t highest() const { return std::max(last_.round, floor_); }
  /// What others are told of all that.
  PreviousWorld told(int attempt) const {
    return {last_.round == highest() ? last_ : WorldId(0, highest()), attempt, last_size_};
  }

  /// Whether that one came after all that are known here.
  bool is_news(const WorldId& world) const { return world.is_later_than({last_.epoch, highest()}); }
  /// Notes a world that an agent was in, or knows of; whether it is the last one from now on.
  /// `runs`: a round does, which keeps its number: its members know no other one.
  bool learn(const PreviousWorld& previous, bool runs) {
    const bool becomes_last = !runs && is_news(previous.id);
    floor_ = std::max(floor_, previous.id.round);
    if (!becomes_last) return false;
    last_ = previous.id;
    last_size_ = previous.nodes;
    return succession_ = true;
  }
  /// Rounds up to that number have been.
  void raise(std::int64_t number) { floor_ = std::max(floor_, number); }
  void formed(const WorldId& world, int nodes) {
    last_ = world;
    last_size_ = nodes;
    succession_ = false;
  }

  /// All up to that one were of a job of this run id that is over.
  void conclude(const WorldId& world) { concluded_ = last_ = world; }
  bool is_concluded(const WorldId& world) const {
    return world.round > 0 && !world.is_later_than(concluded_);
  }

 private:
  WorldId last_, concluded_;
  std::int64_t floor_ = 0;  // others have had so many rounds
  int last_size_ = 0;
  bool succession_ = false;
};

}  // namespace elastrun::rendezvous
