// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/measurement_books.hpp"

#include "core/text.hpp"
#include "goodput/account/measured_phases.hpp"
#include "goodput/compat/time_spans.hpp"
#include "goodput/ledger/phase_bucket.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace elastrun::goodput {
namespace {

using Kind = MeasurementKind;

/// What happens at a moment. Of one moment, ends come before starts.
struct Fact {
  enum class Do : std::uint8_t { End, JobEnd, JobStart, Step, Saved, Begin };
  double time = 0;
  Do what = Do::Step;
  Bucket bucket = Bucket::Custom;
  std::int64_t step = 0;  // Begin and End: the name, see MeasurementEntry::detail

  auto order() const { return std::tuple(time, what); }
};

auto is_of(const Fact& end) {
  return [&end](const Fact& one) { return one.bucket == end.bucket && one.step == end.step; };
}

/// The facts of a log, phases only where both ends are known. Steps, of which there may be a
/// million, are not copied.
class Facts {
 public:
  /// `entries` by their time.
  Facts(std::span<const MeasurementEntry> entries, const MeasurementLog& log)
      : entries_(entries), log_(log) {
    for (const auto& entry : entries) take(entry);
    // Stable: of facts of one moment and kind the order of the log says which phase is the inner
    // one.
    std::ranges::stable_sort(others_, {}, &Fact::order);
  }

  /// In order.
  template <class Take>
  void each(Take take) const {
    auto other = others_.begin();
    for (const auto& entry : entries_) {
      if (entry.kind != Kind::Step) continue;
      const Fact step{entry.time, Fact::Do::Step, {}, entry.step};
      while (other != others_.end() && other->order() < step.order()) take(*other++);
      take(step);
    }
    while (other != others_.end()) take(*other++);
  }

 private:
  void take(const MeasurementEntry& entry) {
    if (entry.kind == Kind::JobStart) add(entry.time, Fact::Do::JobStart);
    if (entry.kind == Kind::JobEnd) add(entry.time, Fact::Do::JobEnd);
    if (entry.kind == Kind::Save || entry.kind == Kind::Restore ||
        entry.kind == Kind::EmergencyRestore) {
      const auto& checkpoint = log_.checkpoint(entry);
      add_span({checkpoint.begin, checkpoint.begin + checkpoint.seconds}, Bucket::Checkpoint);
      if (entry.kind == Kind::Save) {
        add(checkpoint.begin + checkpoint.seconds, Fact::Do::Saved, {}, entry.step);
      }
    }
    for (const auto& phase : kMeasuredPhases) {
      if (entry.kind == phase.start) open_[{phase.start, entry.detail}] = entry.time;
      if (entry.kind != phase.end) continue;
      const auto begun = open_.find({phase.start, entry.detail});
      if (begun == open_.end()) continue;
      const bool custom = phase.bucket == Bucket::Custom;
      add_span({begun->second, entry.time},
               custom ? bucket_of_phase(log_.name(entry)) : phase.bucket, entry.detail);
      open_.erase(begun);
    }
  }

  void add_span(const TimeSpan& span, Bucket bucket, std::int32_t name = 0) {
    if (!(span.length() > 0)) return;
    add(span.begin, Fact::Do::Begin, bucket, name);
    add(span.end, Fact::Do::End, bucket, name);
  }

  void add(double time, Fact::Do what, Bucket bucket = Bucket::Custom, std::int64_t step = 0) {
    others_.push_back({time, what, bucket, step});
  }

  const std::span<const MeasurementEntry> entries_;
  std::vector<Fact> others_;  // other than steps
  const MeasurementLog& log_;
  std::map<std::pair<Kind, std::int32_t>, double> open_;
};

class Books {
 public:
  Books(double job_start, const MeasurementLog& log)
      : log_(log), start_(job_start), ledger_(TimePoint()) {
    ledger_.keep_timeline();
  }

  void take(const Fact& fact);
  std::uint64_t misplaced = 0;
  Ledger::Summary summary(double last) const { return ledger_.summary(at(last)); }
  History history(double last) const { return {ledger_.timeline(at(last)), steps_.points()}; }

 private:
  Duration since_start(double time) const {
    // Beyond some centuries a nanosecond count overflows.
    return from_seconds(std::clamp(time - start_, 0.0, 9.0e9));
  }
  TimePoint at(double time) const { return TimePoint() + since_start(time); }
  void begin_job(double time);
  void step(const Fact& fact);
  void break_off(double time);
  void enter(double time);

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

void Books::enter(double time) {
  if (!running_) return;
  if (open_.empty()) return ledger_.enter(Bucket::Running, at(time));
  const auto& phase = open_.back();
  const bool custom = phase.bucket == Bucket::Custom;
  ledger_.enter(phase.bucket, at(time), custom ? log_.name_at(phase.step) : std::string_view());
}

/// The step that was under way is taken to have lasted as long as the others.
void Books::break_off(double time) {
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

void Books::begin_job(double time) {
  if (running_) {
    break_off(time);
  } else {
    ledger_.failed(at(time));  // whether the last steps before a job end are kept says this start
  }
  open_.clear();
  running_ = true;
  enter(time);
}

void Books::step(const Fact& fact) {
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

void Books::take(const Fact& fact) {
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
  Facts(entries, log).each([&](const Fact& fact) {
    if (fact.time < books.first) {
      ++kept.misplaced;
      return;
    }
    books.last = std::max(books.last, fact.time);
    kept.take(fact);
  });
  books.misplaced = kept.misplaced;
  books.summary = kept.summary(books.last);
  books.history = kept.history(books.last);
  return books;
}

}  // namespace elastrun::goodput
