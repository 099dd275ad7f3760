// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "rendezvous/election/leader_lease.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/world_fence.hpp"

#include <cstdint>
#include <optional>
#include <string>

/// What an elected coordinator writes into its register, as JSON (elastrun-protocol(7), Election).
/// Pure.
namespace elastrun::rendezvous {

/// The coordinator's place.
struct EntryPlace {
  std::string address;
  std::uint16_t port = 0;
  /// The highest epoch that its writer knew. Its own is above that, even if the register has been
  /// restored from nothing and counts from 1 again.
  std::int64_t above = 0;
};
/// `nonce` makes it unlike all others.
std::string encode_entry(const EntryPlace& place, const std::string& nonce);
/// Fails with Protocol.
Result<EntryPlace> decode_entry(const std::string& text);
/// Makes the epoch the register's own count, or one above what the entry's writer knew: a register
/// may forget.
void raise_epoch(LeaderLease::Leader& leader);

struct BreakUp {     // how a world has broken up
  int members = 0;   // that were connected to the coordinator then
  int stopping = 0;  // of them; the groups of all others had ended
  Duration stopping_for{};
  bool left = false;  // the coordinator is none of them any more
};

/// A world that has been given out, or the last one of a job that is over.
struct RecordedWorld {
  WorldRecord world;
  std::string by;       // the coordinator's process
  std::string network;  // where that process is: an address of loopback means nothing elsewhere
  std::optional<Done> verdict{};      // of that job; none: it is at work
  int leavers = 0;                    // that had said goodbye to it
  Duration leaving{};                 // for how long their groups could be at work still
  std::optional<BreakUp> break_up{};  // none: it has not, as far as is known
};
std::string encode_record(const RecordedWorld& recorded);
/// None for an empty text. Of one that is not understood nothing is known but that there is one.
std::optional<RecordedWorld> decode_record(const std::string& text);

}  // namespace elastrun::rendezvous
