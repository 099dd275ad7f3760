// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/world_notes.hpp"

#include "core/text.hpp"

#include <utility>

namespace elastrun::rendezvous {
WorldNotes::WorldNotes(Clock& clock)
    : clock_(clock), nonce_(random_text(16)), predecessor_(clock) {}

void WorldNotes::record(const WorldNote& world, std::function<void()> noted) {
  latest_ = {world, nonce_, Predecessor::own_network()};
  noted_ = std::move(noted);
  tells_of_end_ = false;
}

void WorldNotes::recorded() {
  if (const auto noted = std::exchange(noted_, {})) noted();
}

void WorldNotes::conclude(const Done& verdict) {
  noted_ = nullptr;
  latest_.by = nonce_;
  latest_.network = Predecessor::own_network();
  latest_.verdict = verdict;
}

void WorldNotes::leave(const Leavers& stopping) {
  noted_ = nullptr;
  latest_.stopping = stopping.count;
  latest_.stopping_for = stopping.until - clock_.now();
}

std::string WorldNotes::text(const Leavers& leavers) const {
  const TimePoint now = clock_.now();
  NotedWorld noted = latest_;
  if (leavers.are_at_work(now)) {
    noted.leavers = leavers.count;
    noted.leaving = leavers.until - now;
  }
  return encode_note(noted);
}

void WorldNotes::inherit(const std::string& note, Coordinator& coordinator, Duration isolation) {
  const auto noted = decode_note(note);
  tells_of_end_ = noted && noted->verdict;
  if (!noted) return;
  const TimePoint now = clock_.now();
  const Past past{noted->world.round, 0, noted->world.nodes};
  const Leavers leavers{noted->leavers, now + noted->leaving};
  if (noted->verdict) {
    if (leavers.count > 0) coordinator.inherit(past, now, leavers);
    return coordinator.conclude(noted->world.round, *noted->verdict);
  }
  if (noted->stopping > 0) {
    return coordinator.inherit_stopping(past, {noted->stopping, now + noted->stopping_for},
                                        leavers);
  }
  coordinator.inherit(past, now + isolation, leavers);
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
