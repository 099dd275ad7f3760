// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/stitched_journals.hpp"

#include "goodput/account/node_phase.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

namespace elastrun::goodput {
namespace {

using Round = JournalOutline::Round;

/// Whose turn it is from a round on.
struct Turn {
  std::size_t journal = 0;
  Round round;
};

WallTime end_of(const JournalOutline& journal) {
  return journal.common(journal.end());
}

std::optional<TimePoint> time_of_round(const JournalOutline& journal, const Round& round) {
  const auto found =
      std::ranges::find_if(journal.rounds(), [&](const Round& own) { return own.is(round); });
  return found == journal.rounds().end() ? std::nullopt : std::optional(found->at);
}

/// By round; several in a row of one agent are one turn.
std::vector<Turn> turns_of(const std::vector<JournalOutline>& journals) {
  std::map<std::pair<std::int64_t, std::int64_t>, Turn> leaders;
  for (std::size_t index = 0; index < journals.size(); ++index) {
    for (const auto& round : journals[index].rounds()) {
      const auto [at, first] = leaders.try_emplace({round.epoch, round.number}, Turn{index, round});
      // The lowest group rank tells a round, since the agent of rank 0 alone knows of steps.
      if (!first && round.group_rank < at->second.round.group_rank) at->second = {index, round};
    }
  }
  std::vector<Turn> turns;
  for (const auto& [key, turn] : leaders) {
    if (turns.empty() || turns.back().journal != turn.journal) turns.push_back(turn);
  }
  return turns;
}

/// Where one agent stops to tell and the next one begins, each by its own clock.
using Border = std::pair<TimePoint, TimePoint>;

/// The end of what `before` has to tell of the time before `begun`, where that lies in none of its
/// rounds. From the end of its group on it knows no more than others that were in its round, and
/// may be away, or wait for another round than they do.
TimePoint end_of_telling(const JournalOutline& before, const JournalOutline& after,
                         WallTime begun) {
  const auto& rounds = before.rounds();
  const auto next = std::ranges::find_if(
      rounds, [&](const Round& round) { return before.common(round.at) >= begun; });
  if (next == rounds.begin()) return before.end();
  const auto& last = *std::prev(next);
  return last.gone && time_of_round(after, last) ? *last.gone : before.end();
}

/// After what is told at `until`, which is not far from `near` by the clock of `after`.
Border border_after(const JournalOutline& before, TimePoint until, const JournalOutline& after,
                    TimePoint near) {
  const Duration since = after.common(near) - before.common(until);
  return {until + Duration(1), std::max(near - since, after.begin())};
}

Border border(const JournalOutline& before, const JournalOutline& after, const Round& round) {
  if (const auto there = time_of_round(before, round)) return {*there, round.at};
  const WallTime begun = after.common(round.at);
  const TimePoint until = end_of_telling(before, after, begun);
  const WallTime last = before.common(until);
  if (last >= begun) return {until - (last - begun), round.at};  // it has left, and goes on
  // It died or left. What the others did until the next round they tell themselves.
  return border_after(before, until, after, round.at);
}

/// Who knows what became of the job after the agent whose turn was the last one: if that died, the
/// one that was there longest; if it left, the one that waited longest for a round without it.
std::optional<std::size_t> heir_of(const JournalOutline& last,
                                   const std::vector<JournalOutline>& journals) {
  if (last.has_ended() && !last.has_left()) return std::nullopt;
  std::optional<std::size_t> heir;
  WallTime latest = end_of(last);
  for (std::size_t index = 0; index < journals.size(); ++index) {
    const auto& journal = journals[index];
    if (journal.rounds().empty()) continue;  // a spare that no round needed
    if ((last.has_left() && !journal.waits()) || end_of(journal) <= latest) continue;
    latest = end_of(journal);
    heir = index;
  }
  return heir;
}

class Stitcher {
 public:
  explicit Stitcher(const std::vector<JournalOutline>& journals) : journals_(journals) {}

  void begin(std::size_t journal) {
    const auto origin = journals_[journal].begin();
    const TimePoint base(journals_[journal].common(origin).time_since_epoch());
    stretches.push_back({journal, TimePoint::min(), TimePoint::max(), base, origin});
  }

  void go_on(std::size_t journal, Border border) {
    auto& last = stretches.back();
    const auto& before = journals_[last.journal];
    const TimePoint stop = border.first, from = bounded(border.second);
    last.to = std::max(stop, last.origin);
    const auto stopped = std::clamp(last.to, last.origin, std::max(last.origin, before.end()));
    const Duration gap = journals_[journal].common(from) - before.common(stopped);
    // Clocks may differ by more than the gap, and time must not go back.
    const auto base = bounded(last.time_of(stopped) + std::max(gap, Duration::zero()));
    stretches.push_back({journal, from, TimePoint::max(), base, from});
  }

  std::vector<Stretch> stretches;

 private:
  const std::vector<JournalOutline>& journals_;
};

bool is_of_agent(const telemetry::Record& record, std::initializer_list<std::string_view> names) {
  return record.scope == "elastrun.agent" && std::ranges::find(names, record.name) != names.end();
}

/// That of an agent's part, which is not that of the job if another one goes on.
bool tells_end(const telemetry::Record& record) {
  return is_of_agent(record, {"job.ended", "goodput"}) ||
         (is_of_agent(record, {"phase"}) && phase_of(record) == NodePhase::Ended);
}

}  // namespace

std::vector<Stretch> stitch(const std::vector<JournalOutline>& journals) {
  Stitcher stitcher(journals);
  const auto turns = turns_of(journals);
  for (const auto& turn : turns) {
    if (stitcher.stretches.empty()) {
      stitcher.begin(turn.journal);
      continue;
    }
    const auto& before = journals[stitcher.stretches.back().journal];
    stitcher.go_on(turn.journal, border(before, journals[turn.journal], turn.round));
  }
  // No round was ever complete: any of them knows as much as the others.
  if (turns.empty()) stitcher.begin(0);
  const auto& last = journals[stitcher.stretches.back().journal];
  if (const auto heir = heir_of(last, journals)) {
    const auto& after = journals[*heir];
    const auto until = end_of_telling(last, after, WallTime::max());
    stitcher.go_on(*heir, border_after(last, until, after, after.end()));
  }
  return std::move(stitcher.stretches);
}

StitchedJournals::Verdict StitchedJournals::take(std::size_t index, telemetry::Record& record) {
  const auto& stretch = stretches_[index];
  const TimePoint at = record.stamp.mono;
  if (at >= stretch.to) return Verdict::Over;
  const bool started = is_of_agent(record, {"job.started"});
  if (std::exchange(index_, index) != index) catch_up_.begin();
  if (begun_ != index && at < stretch.from) {
    catch_up_.missed(record, stretch.time_of(at));
    return Verdict::LeftOut;
  }
  // The job has begun already, by the journal of another agent.
  if (started && index > 0) return Verdict::LeftOut;
  if (index + 1 < stretches_.size() && tells_end(record)) return Verdict::LeftOut;
  if (std::exchange(begun_, index) != index) {
    missed_ = catch_up_.take();
    if (!missed_.empty()) last_ = std::max(last_, stretch.time_of(stretch.from));
    for (auto& missed : missed_) missed.stamp.mono = last_;
  }
  record.stamp.mono = last_ = std::max(last_, stretch.time_of(at));
  catch_up_.told(record);
  // Submissions are put in order by the start of the job. All else keeps the wall clock of its
  // machine, by which workers with a recorder have told their times.
  if (started) record.stamp.wall = WallTime(last_.time_since_epoch());
  return Verdict::Taken;
}

}  // namespace elastrun::goodput
