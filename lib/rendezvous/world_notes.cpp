// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/world_notes.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <optional>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr auto kNoteAgain = std::chrono::milliseconds(200);

}  // namespace

WorldNotes::WorldNotes(boost::asio::io_context& loop, Clock& clock, Ballot& ballot)
    : clock_(clock),
      ballot_(ballot),
      nonce_(random_text(16)),
      again_(clock.make_alarm()),
      predecessor_(loop, clock) {}

void WorldNotes::record(const WorldNote& world, std::function<void()> noted,
                        std::function<void()> lost) {
  latest_ = world;
  tells_of_end_ = false;
  const std::string text = encode_note({world, nonce_, Predecessor::own_network(), {}});
  ballot_.record(text, [this, world, noted = std::move(noted),
                        lost = std::move(lost)](Result<bool> recorded) mutable {
    if (recorded) return *recorded ? noted() : lost();
    log::debug("rendezvous", "cannot note the round: {}", recorded.error().text);
    again_->arm(clock_.now() + kNoteAgain,
                [this, world, noted = std::move(noted), lost = std::move(lost)] {
                  record(world, noted, lost);
                });
  });
}

void WorldNotes::conclude(const Done& verdict, std::function<void()> done) {
  const std::string text = encode_note({latest_, nonce_, Predecessor::own_network(), verdict});
  ballot_.record(text, [done = std::move(done)](const Result<bool>&) { done(); });
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
  again_->disarm();
  predecessor_.stop();
}

}  // namespace elastrun::rendezvous
