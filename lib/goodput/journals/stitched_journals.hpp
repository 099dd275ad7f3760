// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/journals/catch_up.hpp"
#include "goodput/journals/journal_outline.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

/// The journals of several agents of one job as the journal of one agent: at each time that of the
/// agent with the lowest group rank, which is where steps are told. Pure.
namespace elastrun::goodput {

/// What a journal tells from `from` until before `to`, by its agent's steady clock. Within a
/// stretch that clock measures; from one to the next the coordinator's clock, which both agents
/// have learnt.
struct Stretch {
  std::size_t journal = 0;
  TimePoint from = TimePoint::min(), to = TimePoint::max();
  TimePoint base;    // `origin` on one axis for all stretches
  TimePoint origin;  // `from`, or the begin of the journal

  /// On that axis.
  TimePoint time_of(TimePoint at) const { return bounded(base + (bounded(at) - origin)); }
};

/// Of the journals of one submission. The first agent tells its start, the last one its end; where
/// an agent has died or left, the next one tells what came then, also if that was only waiting for
/// a round. At least one.
std::vector<Stretch> stitch(const std::vector<JournalOutline>& journals);

/// Takes the records of each stretch in order, and puts those that count on the axis.
class StitchedJournals {
 public:
  explicit StitchedJournals(std::vector<Stretch> stretches) : stretches_(std::move(stretches)) {}
  const std::vector<Stretch>& stretches() const { return stretches_; }

  /// Over: it is of a later stretch, and so is what follows in this journal. Left out: of an agent
  /// that tells nothing of this time.
  enum class Verdict : std::uint8_t { Taken, LeftOut, Over };
  Verdict take(std::size_t stretch, telemetry::Record& record);
  /// What counts before the record that was just Taken: where its agent was further on its way to
  /// the next start than the one before it, what led there.
  std::vector<telemetry::Record> take_missed() { return std::exchange(missed_, {}); }

 private:
  std::vector<Stretch> stretches_;
  CatchUp catch_up_;
  std::vector<telemetry::Record> missed_;
  std::optional<std::size_t> index_;  // of the stretch whose records come
  std::optional<std::size_t> begun_;  // a stretch of which there was a record
  TimePoint last_ = TimePoint::min();
};

}  // namespace elastrun::goodput
