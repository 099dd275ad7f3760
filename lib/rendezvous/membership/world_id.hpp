// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace elastrun::rendezvous {

/// Which world: a closed round of members. The number of the round does not say it alone: where
/// nothing was left of the rounds before (a register that was deleted, or restored from nothing),
/// numbers begin again, under a higher epoch.
struct WorldId {
  constexpr WorldId() = default;
  // No aggregate: three bare numbers must not pass for an id and what follows it.
  constexpr WorldId(std::int64_t of_coordinator, std::int64_t number)
      : epoch(of_coordinator), round(number) {}

  std::int64_t epoch = 0;  // of the coordinator that gave it out; 0: not told
  std::int64_t round = 0;  // from 1; 0: there is none
  bool operator==(const WorldId&) const = default;

  /// Whether both are one world, as far as they say.
  constexpr bool is_same(const WorldId& other) const {
    return round == other.round && (!says_more_than_number(other) || epoch == other.epoch);
  }
  /// Whether it was given out after the other one, as far as they say.
  constexpr bool is_later_than(const WorldId& other) const {
    if (!says_more_than_number(other) || epoch == other.epoch) return round > other.round;
    return epoch > other.epoch;
  }

 private:
  constexpr bool says_more_than_number(const WorldId& other) const {
    return epoch > 0 && other.epoch > 0 && round > 0 && other.round > 0;
  }
};

/// What an agent remembers of the job when it joins: nothing for a new node. Lets a newly elected
/// coordinator go on where the last one stopped.
struct PreviousWorld {
  WorldId id;
  int attempt = 0;
  int nodes = 0;
  int group_rank = -1;  // of the agent in it; -1: none, or not told
};

}  // namespace elastrun::rendezvous
