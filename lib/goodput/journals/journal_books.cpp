// SPDX-License-Identifier: Apache-2.0

#include "goodput/journals/journal_books.hpp"

#include "core/text.hpp"
#include "goodput/account/job_account.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/ledger/ledger.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

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

constexpr std::string_view kAgentScope = "elastrun.agent", kWorkerScope = "elastrun.worker";

bool is_of_agent(const Record& record) {
  return record.scope == kAgentScope;
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

namespace {

using Kind = MeasurementKind;

/// What happens at a moment. Of one moment, ends come before starts.
struct Fact {
  enum class Do : std::uint8_t { End, JobEnd, JobStart, Step, Saved, Begin };
  double time = 0;
  Do what = Do::Step;
  Bucket bucket = Bucket::Custom;
  std::int64_t step = 0;  // Begin and End: the name, by MeasurementLog::detail

  auto order() const { return std::tuple(time, what); }
};

auto is_of(const Fact& end) {
  return [&end](const Fact& one) { return one.bucket == end.bucket && one.step == end.step; };
}

/// The facts of a log in order, but for its steps, of which there may be a million; phases only
/// where both ends are known. `entries` by their time.
std::vector<Fact> facts_beside_steps(std::span<const MeasurementEntry> entries,
                                     const MeasurementLog& log) {
  using Do = Fact::Do;
  std::vector<Fact> facts;
  std::map<std::pair<Kind, std::int32_t>, double> open;
  const auto add_span = [&facts](const TimeSpan& span, Bucket bucket, std::int32_t name = 0) {
    if (!(span.length() > 0)) return;
    facts.push_back({span.begin, Do::Begin, bucket, name});
    facts.push_back({span.end, Do::End, bucket, name});
  };
  for (const auto& entry : entries) {
    if (entry.kind == Kind::Step) continue;
    if (entry.kind == Kind::JobStart) facts.push_back({entry.time, Do::JobStart});
    if (entry.kind == Kind::JobEnd) facts.push_back({entry.time, Do::JobEnd});
    if (is_of_orbax(entry.kind)) {
      const auto& checkpoint = log.detail(entry.detail);
      const double end = checkpoint.begin + checkpoint.seconds;
      add_span({checkpoint.begin, end}, Bucket::Checkpoint);
      if (entry.kind == Kind::Save) facts.push_back({end, Do::Saved, {}, entry.step});
    }
    for (const auto& phase : kMeasuredPhases) {
      if (entry.kind == phase.start) open[{phase.start, entry.detail}] = entry.time;
      if (entry.kind != phase.end) continue;
      const auto begun = open.extract({phase.start, entry.detail});
      if (begun.empty()) continue;
      const bool custom = phase.bucket == Bucket::Custom;
      add_span({begun.mapped(), entry.time},
               custom ? bucket_of_phase(log.detail(entry.detail).name) : phase.bucket,
               entry.detail);
    }
  }
  // Stable: of facts of one moment and kind the order of the log says which phase is the inner one.
  std::ranges::stable_sort(facts, {}, &Fact::order);
  return facts;
}

class Books {
 public:
  Books(double job_start, const MeasurementLog& log)
      : log_(log), start_(job_start), ledger_(TimePoint()) {
    ledger_.keep_timeline();
  }

  void take(const Fact& fact) {
    switch (fact.what) {
      case Fact::Do::JobStart:
        return begin_job(fact.time);
      case Fact::Do::JobEnd:
        if (!running_) return;
        if (step_) {
          ledger_.step(*step_, at(fact.time));
          steps_.end(*step_, since_start(fact.time));
        }
        steps_.interrupt();
        running_ = false;
        step_.reset();
        return ledger_.enter(Bucket::Queued, at(fact.time));
      case Fact::Do::Step:
        return step(fact);
      case Fact::Do::Saved:
        return ledger_.checkpoint(fact.step, at(fact.time));
      case Fact::Do::Begin:
        open_.push_back(fact);
        return enter(fact.time);
      case Fact::Do::End:
        if (const auto one = std::ranges::find_if(open_, is_of(fact)); one != open_.end()) {
          open_.erase(one);
        }
        return enter(fact.time);
    }
  }

  std::uint64_t misplaced = 0;
  Ledger::Summary summary(double last) const { return ledger_.summary(at(last)); }
  History history(double last) const { return {ledger_.timeline(at(last)), steps_.points()}; }

 private:
  Duration since_start(double time) const {
    // Beyond some centuries a nanosecond count overflows.
    return from_seconds(std::clamp(time - start_, 0.0, 9.0e9));
  }
  TimePoint at(double time) const { return TimePoint() + since_start(time); }

  void begin_job(double time) {
    if (running_) {
      break_off(time);
    } else {
      ledger_.failed(at(time));  // whether the last steps before a job end are kept says this start
    }
    open_.clear();
    running_ = true;
    enter(time);
  }

  void step(const Fact& fact) {
    if (!running_) {
      ++misplaced;
      return;
    }
    // Told once more, with a later time, as where several hosts record: the first begin counts.
    if (step_ == fact.step) return;
    if (step_ && fact.step < *step_) {
      break_off(fact.time);
      enter(fact.time);
    } else if (step_) {
      ledger_.step(*step_, at(fact.time));
      known_time_ += fact.time - step_start_;
      // A log may leave steps out.
      known_steps_ += static_cast<double>(fact.step - *step_);
      steps_.end(fact.step - 1, since_start(fact.time));
    }
    steps_.begin(fact.step, since_start(fact.time));
    ledger_.begin_step(fact.step, at(fact.time));
    step_ = fact.step;
    step_start_ = fact.time;
  }

  /// The step that was under way is taken to have lasted as long as the others.
  void break_off(double time) {
    double until = time;
    if (step_) {
      if (known_steps_ > 0) until = std::min(time, step_start_ + known_time_ / known_steps_);
      ledger_.step(*step_, at(until));
    }
    ledger_.failed(at(until));
    steps_.interrupt();
    step_.reset();
    known_steps_ = known_time_ = 0;
  }

  void enter(double time) {
    if (!running_) return;
    if (open_.empty()) return ledger_.enter(Bucket::Running, at(time));
    const auto& phase = open_.back();
    const bool custom = phase.bucket == Bucket::Custom;
    ledger_.enter(phase.bucket, at(time),
                  custom ? std::string_view(log_.detail(phase.step).name) : std::string_view());
  }

  const MeasurementLog& log_;
  double start_;
  Ledger ledger_;
  StepSeries steps_;
  bool running_ = false;
  std::vector<Fact> open_;  // begun phases, the innermost last
  std::optional<std::int64_t> step_;
  double step_start_ = 0;
  double known_steps_ = 0;  // of this start of the job: how many, and how long all of them took
  double known_time_ = 0;
};

/// Whether the log says the same thing twice.
bool is_same(const MeasurementEntry& one, const MeasurementEntry& other) {
  return one.kind == other.kind && one.time == other.time && one.step == other.step &&
         one.detail == other.detail;
}

}  // namespace

std::optional<MeasuredBooks> keep_books(const MeasurementLog& log) {
  const auto key = [](const MeasurementEntry& entry) {
    return std::tuple(entry.time, entry.kind, entry.step, entry.detail);
  };
  MeasuredBooks books;
  std::span<const MeasurementEntry> entries = log.entries();
  std::vector<MeasurementEntry> sorted;  // where they have not come so, each once
  if (!std::ranges::is_sorted(entries, {}, key) ||
      std::ranges::adjacent_find(entries, is_same) != entries.end()) {
    sorted.assign(entries.begin(), entries.end());
    std::ranges::stable_sort(sorted, {}, key);
    const auto repeated = std::ranges::unique(sorted, is_same);
    books.duplicates = repeated.size();
    sorted.erase(repeated.begin(), repeated.end());
    entries = sorted;
  }
  const auto start = std::ranges::find(entries, Kind::JobStart, &MeasurementEntry::kind);
  if (start == entries.end()) return std::nullopt;
  books.first = start->time;
  Books kept(books.first, log);
  const auto take = [&](const Fact& fact) {
    if (fact.time < books.first) {
      ++kept.misplaced;
      return;
    }
    books.last = std::max(books.last, fact.time);
    kept.take(fact);
  };
  const auto others = facts_beside_steps(entries, log);
  auto other = others.begin();
  for (const auto& entry : entries) {
    if (entry.kind != Kind::Step) continue;
    const Fact step{entry.time, Fact::Do::Step, {}, entry.step};
    while (other != others.end() && other->order() < step.order()) take(*other++);
    take(step);
  }
  std::for_each(other, others.end(), take);
  books.misplaced = kept.misplaced;
  books.summary = kept.summary(books.last);
  books.history = kept.history(books.last);
  return books;
}

namespace {

using telemetry::Value;

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

// A century, in which no job takes place: what a journal says beyond it counts as that.
constexpr Duration kFarthestTime = std::chrono::years(100);

/// Zero for nonsense.
Duration seconds_or_none(const Value* value) {
  const double seconds = value == nullptr ? 0 : telemetry::as_real(*value).value_or(0);
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

}  // namespace

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
  const auto* told = std::get_if<std::string>(record.find("run_id"));
  const auto run_id = told == nullptr ? run_id_ : *told;
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
  const bool agent = is_of_agent(record);
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
    account_->entered(record.text("phase"), now);
  }
}

void JournalBooks::close() {
  if (!account_ || over_ || ended_) return;
  account_->died(last_);
  ended_ = true;
}

void JournalBooks::take_entry(const Record& record, TimePoint now) {
  if (record.name == "lost") lost_ += count_in(record.attributes, "count");
  // As live: the entries of rank 0 stand for all.
  if (record.name == "lost" || whole_or(record.find("rank"), 0) != 0) return;
  const auto read = read_measurement(record.attributes);
  if (!read) return;
  account_->recorded(read->entry, read->detail.name,
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
    account_->restarting(printable(record.text("cause")), record.is("failure"), now);
  } else if (record.name == "group.failed") {
    const auto what = printable(record.text("what"));
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
    const bool succeeded = record.is("succeeded");
    account_->ended(succeeded, now, record.text("ending"));
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

std::vector<RestartPath> JournalBooks::restarts() const {
  return account_ ? account_->restarts().paths() : std::vector<RestartPath>();
}

std::vector<WorkersStart> JournalBooks::starts() const {
  return account_ ? account_->starts(last_) : std::vector<WorkersStart>();
}

}  // namespace elastrun::goodput
