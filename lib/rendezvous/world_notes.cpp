// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/world_notes.hpp"

#include "core/text.hpp"

#include <utility>

namespace elastrun::rendezvous {
WorldNotes::WorldNotes(Clock& clock) : nonce_(random_text(16)), predecessor_(clock) {}

void WorldNotes::record(const WorldNote& world, std::function<void()> noted) {
  latest_ = world;
  noted_ = std::move(noted);
  tells_of_end_ = false;
  text_ = encode_note({world, nonce_, Predecessor::own_network(), {}});
}

void WorldNotes::recorded() {
  if (const auto noted = std::exchange(noted_, {})) noted();
}

void WorldNotes::conclude(const Done& verdict) {
  noted_ = nullptr;
  text_ = encode_note({latest_, nonce_, Predecessor::own_network(), verdict});
}

void WorldNotes::inherit(const std::string& note, Coordinator& coordinator, TimePoint until) {
  const auto noted = decode_note(note);
  tells_of_end_ = noted && noted->verdict;
  if (!noted) return;
  if (noted->verdict) return coordinator.conclude(noted->world.round, *noted->verdict);
  coordinator.inherit({noted->world.round, 0, noted->world.nodes}, until);
  predecessor_.investigate(*noted, [&coordinator] { coordinator.disinherit(); });
}

bool WorldNotes::is_strange(const std::string& note) const {
  const auto noted = decode_note(note);
  return noted && noted->by != nonce_;
}

void WorldNotes::stop() {
  noted_ = nullptr;
  predecessor_.stop();
}

}  // namespace elastrun::rendezvous
