// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/journal_books.hpp"

#include "core/text.hpp"
#include "goodput/compat/measurement_log.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>

namespace elastrun::goodput {
namespace {

using telemetry::Record;
using telemetry::Value;

constexpr std::string_view kAgentScope = "elastrun.agent", kWorkerScope = "elastrun.worker";

std::int64_t whole_or(const Value* value, std::int64_t otherwise) {
  if (value == nullptr) return otherwise;
  if (const auto* whole = std::get_if<std::int64_t>(value)) return *whole;
  if (const auto* real = std::get_if<double>(value)) {
    // Below 2^53, up to which doubles name every whole number; beyond the range of the type the
    // cast is undefined.
    if (*real > -9e15 && *real < 9e15) return static_cast<std::int64_t>(*real);
  }
  return otherwise;
}

std::string text_or(const Value* value, std::string otherwise) {
  const auto* text = std::get_if<std::string>(value);
  return text == nullptr ? std::move(otherwise) : *text;
}

// A century, in which no job takes place: what a journal says beyond it counts as that.
constexpr Duration kFarthestTime = std::chrono::years(100);

/// Zero for nonsense.
Duration seconds_or_none(const Value* value) {
  const auto* whole = std::get_if<std::int64_t>(value);
  const auto* real = std::get_if<double>(value);
  const double seconds = whole != nullptr ? static_cast<double>(*whole) : real ? *real : 0;
  return seconds >= 0 && seconds <= to_seconds(kFarthestTime) ? from_seconds(seconds) : Duration();
}

Duration apart(Duration later, Duration earlier) {
  std::int64_t difference = 0;
  // A journal may say any number, and the overflow of a signed one is undefined.
  if (__builtin_sub_overflow(later.count(), earlier.count(), &difference)) {
    return later > earlier ? kFarthestTime : -kFarthestTime;
  }
  return std::clamp(Duration(difference), -kFarthestTime, kFarthestTime);
}

TimePoint after(TimePoint time, Duration passed) {
  return std::min(time + passed, TimePoint() + kFarthestTime);
}

bool is_true(const Value* value) {
  const auto* flag = std::get_if<bool>(value);
  return flag != nullptr && *flag;
}

}  // namespace

json::object entry_of(const Record& record) {
  json::object entry;
  for (const auto& [name, value] : record.attributes) entry[name] = telemetry::to_json(value);
  return entry;
}

TimePoint time_of_entry(double posix_seconds, TimePoint now, WallTime wall) {
  const std::chrono::duration<double> since_epoch = wall.time_since_epoch();
  // What is older than a day was not said by this worker.
  const double ago = std::clamp(since_epoch.count() - posix_seconds, 0.0, 86'400.0);
  return now - from_seconds(ago);
}

/// On one axis for all submissions, never back.
TimePoint JournalBooks::time_of(const Record& record) {
  const TimePoint time = after(
      book_start_, apart(record.stamp.mono.time_since_epoch(), mono_start_.time_since_epoch()));
  if (time < last_) ++misplaced_;
  // A ledger books what passes between two facts, so a fact from before the last one counts as at
  // the same time.
  last_ = std::max(last_, time);
  return last_;
}

void JournalBooks::begin(const Record& record) {
  const auto run_id = text_or(record.find("run_id"), run_id_);
  // Of one whose first line is torn the name is not known.
  of_other_job_ = account_ && !run_id_.empty() && run_id != run_id_;
  if (of_other_job_) {
    ++other_jobs_;
    return;
  }
  ++submissions_;
  run_id_ = run_id;
  mono_start_ = record.stamp.mono;
  const bool several = whole_or(record.find("max_nodes"), 1) > 1;
  const Duration ago = seconds_or_none(record.find("since_start_s"));
  if (!account_) {
    first_wall_ = record.stamp.wall - ago;
    book_start_ = last_ = TimePoint() + ago;
    account_.emplace(TimePoint(), several, TimePoint());
    if (keeps_history_) account_->keep_history();
    submitted_.push_back({});
    return;
  }
  const Duration since_first =
      apart(record.stamp.wall.time_since_epoch(), first_wall_.time_since_epoch());
  if (!over_) {  // the machine died; or with --goodput off, which leaves the last record away
    if (!ended_) account_->died(last_);
    account_->left(last_);
  }
  // By the wall clocks of two machines: a submission cannot begin before the last one ended.
  last_ = std::max(last_, after(TimePoint(), since_first - ago));
  book_start_ = after(last_, ago);
  over_ = ended_ = false;
  account_->submitted_again(last_);
  if (submitted_.size() < Submission::kMost) {
    submitted_.push_back({.at = last_ - TimePoint(), .end = {}, .succeeded = {}});
  }
}

void JournalBooks::take(const Record& record) {
  const bool agent = record.scope == kAgentScope;
  const bool recorder = record.scope == kRecorderScope;
  if (!agent && !recorder && record.scope != kWorkerScope) return;
  if (record.kind == Record::Kind::SpanEnd) return;  // which is written with earlier times
  if (agent && record.name == "job.started") return begin(record);
  if (of_other_job_) {
    ++other_jobs_;
    return;
  }
  if (!account_ || over_) {
    if (!over_) ++misplaced_;
    return;
  }
  const TimePoint now = time_of(record);
  if (agent) return take_agent(record, now);
  if (recorder) return take_entry(record, now);
  if (record.name == "step") {
    account_->step(whole_or(&record.value, 0), now);
  } else if (record.name == "checkpoint") {
    account_->checkpoint(whole_or(record.find("rank"), 0), whole_or(record.find("step"), -1), now);
  } else if (record.name == "phase" && whole_or(record.find("rank"), 0) == 0) {
    account_->entered(text_or(record.find("phase"), ""), now);
  }
}

void JournalBooks::close() {
  if (!account_ || over_ || ended_) return;
  account_->died(last_);
  ended_ = true;
}

void JournalBooks::take_entry(const Record& record, TimePoint now) {
  if (record.name == "lost") {
    lost_ +=
        static_cast<std::uint64_t>(std::max<std::int64_t>(whole_or(record.find("count"), 0), 0));
    return;
  }
  // As live: the entries of rank 0 stand for all.
  if (whole_or(record.find("rank"), 0) != 0) return;
  const auto read = read_measurement(entry_of(record));
  if (!read) return;
  account_->recorded(read->entry, read->name,
                     time_of_entry(read->entry.time, now, record.stamp.wall));
}

void JournalBooks::take_agent(const Record& record, TimePoint now) {
  if (record.name == "phase") {
    const auto phase = phase_of(record);
    if (phase == NodePhase::Starting) failed_group_ = false;
    if (phase) account_->phase(*phase, now);
  } else if (record.name == "rendezvous.round") {
    account_->world(whole_or(record.find("world_size"), 0));
  } else if (record.name == "ranks.connecting" || record.name == "ranks.connected") {
    account_->joined(record.name == "ranks.connected", now);
  } else if (record.name == "restart") {
    const auto* failure = record.find("failure");  // which older agents do not tell
    account_->restarting(printable(text_or(record.find("cause"), "")),
                         is_true(failure != nullptr ? failure : record.find("attempt_spent")), now);
  } else if (record.name == "group.failed") {
    const auto what = printable(text_or(record.find("what"), ""));
    const auto rank = whole_or(record.find("rank"), 0);
    const auto* exit = record.find("exit_s");
    account_->noticed_after(seconds_or_none(record.find("noticed_after_s")),
                            exit ? std::optional(seconds_or_none(exit)) : std::nullopt,
                            what.empty() ? what : fmt::format("rank {} {}", rank, what));
  } else if (record.name == "job.hang") {
    account_->hang(seconds_or_none(record.find("standing_s")), now);
  } else if (record.name == "worker.ended") {
    failed_group_ = failed_group_ || whole_or(record.find("exit_code"), 1) != 0;
  } else if (record.name == "group.gone") {
    account_->stopped(failed_group_, now);
  } else if (record.name == "job.ended") {
    const bool succeeded = is_true(record.find("succeeded"));
    account_->ended(succeeded, now, text_or(record.find("ending"), "stopped"));
    ended_ = true;
    if (submissions_ <= static_cast<int>(Submission::kMost)) {
      submitted_.back().end = now - TimePoint();
      submitted_.back().succeeded = succeeded;
    }
  } else if (record.name == "goodput") {
    account_->left(now);
    over_ = true;
  }
}

std::optional<Ledger::Summary> JournalBooks::summary(Duration beyond) const {
  if (!account_) return std::nullopt;
  return account_->summary(over_ ? last_ : last_ + beyond);
}

History JournalBooks::history() const {
  return account_ ? account_->history(last_) : History();
}

std::vector<RestartPath> JournalBooks::restarts() const {
  return account_ ? account_->restarts().paths() : std::vector<RestartPath>();
}

std::vector<WorkersStart> JournalBooks::starts() const {
  return account_ ? account_->starts(last_) : std::vector<WorkersStart>();
}

}  // namespace elastrun::goodput
