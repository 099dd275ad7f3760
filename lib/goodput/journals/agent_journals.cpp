// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/agent_journals.hpp"

#include "goodput/account/restart_log.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>

namespace elastrun::goodput {
namespace {

using telemetry::Record;
using Round = JournalOutline::Round;

constexpr std::size_t kMostRounds = 100'000;
/// A job that is submitted again begins after its end; the clocks of two machines may hide that.
constexpr Duration kHidden = std::chrono::seconds(1);

/// Times beyond 75 years count as that: what a hostile journal says must not overflow.
template <class Time>
Time bounded(Time time) {
  constexpr Duration kFarthest = std::chrono::years(75);
  return Time(std::clamp(Duration(time.time_since_epoch()), -kFarthest, kFarthest));
}

std::int64_t number_in(const Record& record, std::string_view name) {
  return record.whole(name).value_or(-1);
}

/// Ends an agent, and not the job of the others.
bool is_of_leaving(std::string_view ending) {
  constexpr std::string_view kLeaving[] = {"signalled", "not_started", "rendezvous_lost",
                                           "worker_stuck", "guardian_lost"};
  return std::ranges::find(kLeaving, ending) != std::end(kLeaving);
}

bool is_of_agent(const Record& record) {
  return record.scope == "elastrun.agent";
}

}  // namespace

bool JournalOutline::concerns(std::string_view line) {
  constexpr std::string_view kNames[] = {"\"job.started\"", "\"rendezvous.round\"", "\"job.ended\"",
                                         "\"phase\""};
  // By the text alone: for most lines a parser that makes a tree would be wasted time.
  return line.contains("\"elastrun.agent\"") &&
         std::ranges::any_of(kNames, [&](auto name) { return line.contains(name); });
}

void JournalOutline::take(const Record& record) {
  if (!std::exchange(begun_, true)) {
    offset_ = bounded(record.stamp.wall).time_since_epoch() -
              bounded(record.stamp.mono).time_since_epoch();
    begin_ = end_ = time_of(record.stamp.mono);
  }
  const WallTime at = time_of(record.stamp.mono);
  if (!left_) end_ = std::max(end_, at);
  if (!is_of_agent(record)) return;
  const bool starts = record.name == "job.started";
  // Else the line that told the start was torn, and the run id with it.
  if (starts || submissions_ == 0) ++submissions_;
  if (starts) {
    run_id_ = record.text("run_id");
  } else if (record.name == "rendezvous.round" && rounds_.size() < kMostRounds) {
    rounds_.push_back({{number_in(record, "epoch"), number_in(record, "round")},
                       number_in(record, "group_rank"),
                       at});
  } else if (const auto phase = phase_of(record)) {
    if (phase == NodePhase::Stopping) stopping_ = at;
    if (phase == NodePhase::Joining) stopping_.reset();
  } else if (record.name == "job.ended") {
    left_ = is_of_leaving(record.text("ending"));
    tells_end_ = !left_;
    // The others begin to stop at the same moment at the earliest.
    if (left_) end_ = std::max(begin_, stopping_.value_or(at) - Duration(1));
  }
}

WallTime JournalOutline::time_of(TimePoint at) const {
  return WallTime(Duration(bounded(at).time_since_epoch() + offset_));
}

const Round* JournalOutline::round_at(WallTime at) const {
  if (rounds_.empty()) return nullptr;
  const auto later = std::ranges::upper_bound(rounds_, at, {}, &Round::at);
  return later == rounds_.begin() ? &*later : &*std::prev(later);
}

const Round* JournalOutline::round_after(WallTime at) const {
  const auto next = std::ranges::lower_bound(rounds_, at, {}, &Round::at);
  return next == rounds_.end() ? nullptr : &*next;
}

std::vector<std::vector<std::size_t>> submissions_of(const std::vector<JournalOutline>& journals) {
  std::vector<std::size_t> order;
  for (std::size_t index = 0; index < journals.size(); ++index) order.push_back(index);
  std::ranges::stable_sort(order, {}, [&](std::size_t index) { return journals[index].begin(); });
  struct Open {
    std::vector<std::size_t> members;
    std::string run_id;
    WallTime end;
    bool alone = false;
    std::set<std::pair<JournalOutline::Number, std::int64_t>> places{};  // in rounds
  };
  std::vector<Open> all;
  for (const auto index : order) {
    const auto& journal = journals[index];
    const auto is_its = [&](const Open& one) {
      const bool alike =
          one.run_id == journal.run_id() || one.run_id.empty() || journal.run_id().empty();
      // Of a short job the clocks may hide more than a second of the common time.
      const Duration common = std::min(one.end, journal.end()) - journal.begin();
      const bool meet = common > kHidden || common > (journal.end() - journal.begin()) / 2;
      // Two jobs of one name that run side by side have the same places in their rounds.
      return !one.alone && alike && meet &&
             std::ranges::none_of(journal.rounds(), [&](const Round& round) {
               return one.places.contains({round.number, round.group_rank});
             });
    };
    const bool alone = !journal.is_of_one_submission();
    auto found = alone ? all.end() : std::ranges::find_if(all, is_its);
    if (found == all.end()) found = all.insert(all.end(), {{}, "", journal.end(), alone});
    found->members.push_back(index);
    for (const auto& round : journal.rounds()) {
      found->places.emplace(round.number, round.group_rank);
    }
    found->end = std::max(found->end, journal.end());
    if (found->run_id.empty()) found->run_id = journal.run_id();
  }
  std::vector<std::vector<std::size_t>> submissions;
  for (auto& one : all) submissions.push_back(std::move(one.members));
  return submissions;
}

AgentJournals::AgentJournals(const std::vector<JournalOutline>& journals) : journals_(journals) {
  // Who counts may change there, and nowhere else.
  std::vector<WallTime> changes;
  for (const auto& journal : journals) {
    changes.push_back(journal.begin());
    changes.push_back(journal.end() + Duration(1));
    for (const auto& round : journal.rounds()) changes.push_back(round.at);
  }
  std::ranges::sort(changes);
  const bool some_round = std::ranges::any_of(
      journals, [](const JournalOutline& journal) { return !journal.rounds().empty(); });
  for (const auto at : changes) {
    const JournalOutline* leader = nullptr;
    const auto place = [&](const JournalOutline& journal) {
      const auto* round = journal.round_at(at);
      constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
      // Of two with the same rank one has not heard of the later round yet. ~n: -1 - n, without the
      // overflow that a number in a file could bring.
      return round == nullptr
                 ? std::tuple(kLast, std::int64_t{0}, std::int64_t{0})
                 : std::tuple(round->group_rank, ~round->number.first, ~round->number.second);
    };
    for (const auto& journal : journals) {
      if (at < journal.begin() || at > journal.end()) continue;
      if (some_round && journal.rounds().empty()) continue;  // a spare that no round needed
      if (leader == nullptr || place(journal) < place(*leader)) leader = &journal;
    }
    if (leader == nullptr) continue;
    const auto index = static_cast<std::size_t>(leader - journals.data());
    if (!stretches_.empty() && stretches_.back().journal == index) continue;
    if (!stretches_.empty()) {
      // What others tell after the end of the job is their own.
      const auto& last = journals[stretches_.back().journal];
      if (last.tells_end() && at > last.end()) break;
      stretches_.back().to = at;
    }
    stretches_.push_back({index, at, WallTime::max()});
  }
}

/// An agent that begins to tell may be behind the one before it, on the way to the same round.
bool AgentJournals::was_told(const JournalOutline& journal, const Record& record,
                             WallTime at) const {
  const bool round = record.name == "rendezvous.round";
  const auto phase = phase_of(record);
  if (round || phase == NodePhase::Running) {
    const auto* its = journal.round_at(at);
    return its != nullptr && its->number <= running_;
  }
  if (phase != NodePhase::Joining && phase != NodePhase::Starting) return false;
  const auto* next = journal.round_after(at);
  return next != nullptr && next->number <= running_;
}

AgentJournals::Verdict AgentJournals::take(std::size_t index, Record& record) {
  const auto& stretch = stretches_[index];
  const auto& journal = journals_[stretch.journal];
  const WallTime at = journal.time_of(record.stamp.mono);
  if (at >= stretch.to) return Verdict::Over;
  if (at < stretch.from) return Verdict::LeftOut;
  if (is_of_agent(record)) {
    // The job has begun already, or goes on by the journal of another agent.
    if (record.name == "job.started" && index > 0) return Verdict::LeftOut;
    const bool has_left = at > journal.end() && index + 1 < stretches_.size();
    if (has_left || was_told(journal, record, at)) return Verdict::LeftOut;
    if (record.name == "rendezvous.round") {
      round_ = {number_in(record, "epoch"), number_in(record, "round")};
    }
    if (phase_of(record) == NodePhase::Running) running_ = round_;
  }
  last_ = std::max(last_, at);
  record.stamp.mono = TimePoint(last_.time_since_epoch());
  return Verdict::Taken;
}

}  // namespace elastrun::goodput
