// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/journal_outline.hpp"

#include "core/text.hpp"
#include "goodput/account/node_phase.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <utility>

namespace elastrun::goodput {
namespace {

using telemetry::Record;

// A journal has some at the start of each job and one in ten minutes afterwards.
constexpr std::size_t kMostClocks = 100'000, kMostRounds = 100'000;

std::int64_t whole(const Record& record, std::string_view name) {
  const auto* number = std::get_if<std::int64_t>(record.find(name));
  return number == nullptr ? -1 : *number;
}

std::string text(const Record& record, std::string_view name) {
  const auto* found = std::get_if<std::string>(record.find(name));
  return found == nullptr ? std::string() : *found;
}

/// Ends an agent that others need not end with.
bool is_of_leaving(std::string_view ending) {
  constexpr std::string_view kLeaving[] = {"signalled", "not_started", "rendezvous_lost",
                                           "worker_stuck", "guardian_lost"};
  return std::ranges::find(kLeaving, ending) != std::end(kLeaving);
}

}  // namespace

bool JournalOutline::concerns(std::string_view line) {
  constexpr std::string_view kNames[] = {"\"job.started\"", "\"rendezvous.round\"",
                                         "\"job.ended\"",   "\"clock.offset\"",
                                         "\"group.gone\"",  "\"phase\""};
  // By the text alone: for most lines a parser that makes a tree would be wasted time.
  return line.contains("\"elastrun.agent\"") &&
         std::ranges::any_of(kNames, [&](auto name) { return line.contains(name); });
}

void JournalOutline::take(const Record& record) {
  const TimePoint at = bounded(record.stamp.mono);
  if (!std::exchange(begun_, true)) {
    begin_ = end_ = at;
    own_offset_ = bounded(bounded(record.stamp.wall.time_since_epoch()) - at.time_since_epoch());
  }
  end_ = std::max(end_, at);
  if (record.scope != "elastrun.agent") return;
  const bool starts = record.name == "job.started";
  // Else the line that told the start was torn, and the run id with it.
  if (starts || submissions_ == 0) ++submissions_;
  if (starts) {
    run_id_ = text(record, "run_id");
  } else if (record.name == "rendezvous.round" && rounds_.size() < kMostRounds) {
    waits_ = false;
    rounds_.push_back(
        {whole(record, "epoch"), whole(record, "round"), whole(record, "group_rank"),
         fmt::format("{}:{}", text(record, "master_addr"), whole(record, "master_port")), at});
  } else if (record.name == "group.gone" && !rounds_.empty()) {
    rounds_.back().gone = at;
  } else if (phase_of(record) == NodePhase::Joining) {
    waits_ = !rounds_.empty();
  } else if (record.name == "job.ended") {
    ended_ = true;
    left_ = is_of_leaving(text(record, "ending"));
  } else if (record.name == kClockRecord) {
    take_clock(record, at);
  }
}

void JournalOutline::take_clock(const Record& record, TimePoint at) {
  const auto* seconds = std::get_if<double>(record.find(kClockError));
  const auto offset = whole(record, kClockOffset);
  if (offset <= 0 || seconds == nullptr || !(*seconds >= 0 && *seconds < 86'400)) return;
  if (clocks_.size() == kMostClocks) return;
  clocks_.push_back(
      {at, bounded(Duration(offset)), from_seconds(*seconds), whole(record, kClockEpoch)});
}

Duration JournalOutline::clock_error() const {
  // A reading holds for up to ten minutes, in which two clocks may drift 60 ms apart: the error of
  // the readings alone would promise too much.
  Duration most{};
  for (auto clock = clocks_.begin(); clock != clocks_.end(); ++clock) {
    const auto next = std::next(clock);
    const Duration before = clock == clocks_.begin() ? clock->at - begin_ : Duration::zero();
    const Duration after = (next == clocks_.end() ? end_ : next->at) - clock->at;
    most = std::max(most, bounded(clock->error + drift_in(std::max(before, after))));
  }
  return most;
}

WallTime JournalOutline::common(TimePoint at) const {
  const auto later = std::ranges::upper_bound(clocks_, at, {}, &Clock::at);
  const Duration offset = clocks_.empty()            ? own_offset_
                          : later == clocks_.begin() ? later->offset
                                                     : (later - 1)->offset;
  return WallTime(bounded(bounded(at).time_since_epoch() + offset));
}

}  // namespace elastrun::goodput
