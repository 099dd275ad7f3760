// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/one_clock.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace elastrun::goodput {
namespace {

/// How far a clock is ahead of an earlier one, give or take `error`.
struct Ahead {
  Duration time{}, error{};
};

/// Of each epoch, and how far its clock is ahead of those of earlier ones.
using Epochs = std::map<std::int64_t, std::map<std::int64_t, Ahead>>;

void learn(Epochs& epochs, const std::vector<JournalOutline::Clock>& clocks) {
  const JournalOutline::Clock* before = nullptr;
  for (const auto& clock : clocks) {
    auto& known = epochs[clock.epoch];
    const auto* one = std::exchange(before, &clock);
    if (one == nullptr || one->epoch >= clock.epoch) continue;
    // The agent's steady clock lies between the two readings, so they tell the distance of the two
    // coordinators' clocks; each of the readings may be wrong, and the clock between them drifts.
    const Ahead found{clock.offset - one->offset,
                      clock.error + one->error + drift_in(clock.at - one->at)};
    const auto [at, first] = known.try_emplace(one->epoch, found);
    if (!first && found.error < at->second.error) at->second = found;
  }
}

/// Of each epoch, to the clock of the first. Where no agent was there in two that follow one
/// another they pass for one clock, as they are where a coordinator was elected again.
std::map<std::int64_t, Ahead> ahead_of_first(const Epochs& epochs) {
  std::map<std::int64_t, Ahead> ahead;
  Ahead last;
  for (const auto& [epoch, known] : epochs) {
    std::optional<Ahead> best;
    for (const auto& [earlier, jump] : known) {
      const auto& from = ahead.at(earlier);
      const Ahead found{bounded(from.time + jump.time), bounded(from.error + jump.error)};
      if (!best || found.error < best->error) best = found;
    }
    last = best.value_or(last);
    ahead.emplace(epoch, last);
  }
  return ahead;
}

}  // namespace

void put_on_one_clock(std::vector<JournalOutline>& journals) {
  Epochs epochs;
  for (const auto& journal : journals) learn(epochs, journal.clocks());
  if (epochs.size() < 2) return;
  const auto ahead = ahead_of_first(epochs);
  for (auto& journal : journals) {
    auto clocks = journal.clocks();
    for (auto& clock : clocks) {
      const auto& found = ahead.at(clock.epoch);
      clock.offset = bounded(clock.offset - found.time);
      clock.error = bounded(clock.error + found.error);
    }
    journal.set_clocks(std::move(clocks));
  }
}

}  // namespace elastrun::goodput
