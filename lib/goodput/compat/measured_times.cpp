// SPDX-License-Identifier: Apache-2.0

#include "goodput/compat/measured_times.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace elastrun::goodput {

/// The steps between two disruptions of a measured job, in order of arrival: none has a number
/// twice.
class StepSegment {
 public:
  struct Step {
    std::int64_t step = 0;
    double time = 0;  // of its start, POSIX seconds
  };
  struct Closed {
    double productive = 0;
    std::int64_t max_step = 0;
    double excluded = 0;
  };

  /// False if there is such a step already; nothing is added then.
  bool add(std::int64_t step, double time);
  bool empty() const { return steps_.empty(); }
  double last_time() const { return steps_.back().time; }
  Step highest() const;

  /// Steps beyond `cut` are wasted. What is not productive is added to `times.badput`, and with
  /// exclusions how long each step took to `times.steps`.
  Closed close(std::int64_t cut, const CustomEvents& customs, const std::vector<TimeSpan>* excluded,
               MeasuredTimes& times) const;

 private:
  bool known(std::int64_t step) const;

  std::vector<Step> steps_;
  bool rising_ = true;  // as nearly always: then no set is needed
  std::unordered_set<std::int64_t> numbers_;
};

namespace {

/// What custom events take of one step, and their share by name: those that lie within it, or,
/// `cut` at its ends, parts of them.
double book_customs(const TimeSpan& step, const CustomEvents& customs, bool cut,
                    BadputTimes& badput) {
  double seconds = 0;
  for (const auto& [name, event] : customs.around(step)) {
    double taken = 0;
    if (!cut) {
      if (event.begin < step.begin || event.end > step.end) continue;
      taken = event.length();
    } else {
      const TimeSpan part{std::max(event.begin, step.begin), std::min(event.end, step.end)};
      if (part.end <= part.begin) continue;
      taken = part.length();
    }
    badput.custom[std::string(name)] += taken;
    seconds += taken;
  }
  return seconds;
}

}  // namespace

bool StepSegment::known(std::int64_t step) const {
  if (rising_) {
    // As long as the numbers rise no set is kept beside them: a log may have a million steps.
    const auto place = std::ranges::lower_bound(steps_, step, {}, &Step::step);
    return place != steps_.end() && place->step == step;
  }
  return numbers_.contains(step);
}

bool StepSegment::add(std::int64_t step, double time) {
  if (!steps_.empty() && (!rising_ || step <= steps_.back().step)) {
    if (known(step)) return false;
    if (rising_) {
      for (const auto& one : steps_) numbers_.insert(one.step);
      rising_ = false;
    }
    numbers_.insert(step);
  }
  steps_.push_back({step, time});
  return true;
}

StepSegment::Step StepSegment::highest() const {
  return *std::ranges::max_element(steps_, {}, &Step::step);
}

StepSegment::Closed StepSegment::close(std::int64_t cut, const CustomEvents& customs,
                                       const std::vector<TimeSpan>* excluded,
                                       MeasuredTimes& times) const {
  auto& badput = times.badput;
  Closed closed;
  if (cut == 0 && excluded == nullptr) return closed;
  const auto lowest = std::ranges::min_element(steps_, {}, &Step::step)->step;
  double first = 0;
  std::size_t others = 0, counted = 0;
  for (std::size_t i = 1; i < steps_.size(); ++i) {
    const auto& [number, start] = steps_[i - 1];
    const TimeSpan span{start, steps_[i].time};
    const double cut_out = excluded == nullptr ? 0 : overlap(span, *excluded);
    closed.excluded += cut_out;
    if (steps_[i].step > cut) {
      const double lost = span.length() - cut_out;
      badput[BadputType::WastedProgress] += excluded == nullptr ? lost : std::max(0.0, lost);
      continue;
    }
    // Across a gap the time of one step is not known.
    if (steps_[i].step != number + 1) continue;
    const double customs_in = book_customs(span, customs, excluded != nullptr, badput);
    const double seconds = std::max(0.0, span.length() - customs_in - cut_out);
    closed.productive += seconds;
    closed.max_step = number;
    if (number == lowest) first = seconds;
    if (excluded != nullptr) times.steps.push_back({number, seconds});
    if (number != lowest) ++others;
    ++counted;
  }
  if (excluded != nullptr && counted > 0) others = counted - 1;  // as there
  if (others == 0) return closed;
  const double mean = (closed.productive - first) / static_cast<double>(others);
  const double startup = std::max(0.0, first - mean);
  badput[BadputType::ProgramStartup] += startup;
  closed.productive -= startup;
  if (excluded != nullptr) times.steps.push_back({lowest, first - startup});
  return closed;
}

namespace {

using Kind = MeasurementKind;

/// A phase that has begun.
struct OpenPhase {
  std::optional<double> start;
  void open(double time) { start = time; }  // a start without an end is lost
  std::optional<TimeSpan> close(double time) {
    const auto from = std::exchange(start, std::nullopt);
    if (!from) return std::nullopt;
    return TimeSpan{*from, time};
  }
  /// As close(), of what counts only if it takes time.
  std::optional<TimeSpan> close_after(double time) {
    const auto span = close(time);
    return span && span->length() > 0 ? span : std::nullopt;
  }
};

std::string in_small_letters(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

std::vector<TimeSpan> reinit_spans(std::span<const MeasurementEntry> entries) {
  std::vector<TimeSpan> spans;
  OpenPhase open;
  for (const auto& entry : entries) {
    if (entry.kind == Kind::ElasticReinitStart) open.open(entry.time);
    if (entry.kind != Kind::ElasticReinitEnd) continue;
    if (const auto span = open.close_after(entry.time)) spans.push_back(*span);
  }
  return spans;
}

class Pass {
 public:
  Pass(const MeasurementLog& log, std::span<const MeasurementEntry> entries, const MeasureBy& how)
      : log_(log), entries_(entries), how_(how), customs_(log, entries) {
    if (counts_elastic()) reinits_ = reinit_spans(entries);
  }

  MeasuredTimes run() {
    for (const auto& entry : entries_) take(entry);
    finish();
    return std::move(times_);
  }

 private:
  /// The pass with exclusions knows nothing of slices, as there.
  bool counts_elastic() const { return how_.elastic && how_.excluded == nullptr; }
  void take(const MeasurementEntry& entry);
  void take_step(const MeasurementEntry& entry);
  void end_phase(BadputType type, OpenPhase& phase, double time);
  void end_load(double time);
  void close_segment(std::int64_t cut);
  void finish();
  void add_checkpoints();
  void add_elastic();
  double without_excluded(const TimeSpan& span);

  const MeasurementLog& log_;
  std::span<const MeasurementEntry> entries_;
  const MeasureBy& how_;
  CustomEvents customs_;
  std::vector<TimeSpan> reinits_;

  MeasuredTimes times_;
  StepSegment segment_;
  OpenPhase init_, preparation_, load_;
  std::optional<double> pending_load_;
  bool next_load_is_sync_ = true;
  double loads_ = 0;
  std::optional<double> job_start_, job_end_;
};

/// Its length without what is excluded, which is added up.
double Pass::without_excluded(const TimeSpan& span) {
  if (how_.excluded == nullptr) return span.length();
  const double cut = overlap(span, *how_.excluded);
  times_.excluded += cut;
  return std::max(0.0, span.length() - cut);
}

void Pass::end_phase(BadputType type, OpenPhase& phase, double time) {
  const auto span = phase.close(time);
  if (!span) return;
  const double inside_reinit = overlap(*span, reinits_);
  const double length = without_excluded(*span);
  times_.badput[type] += inside_reinit > 0 ? std::max(0.0, length - inside_reinit) : length;
}

void Pass::end_load(double time) {
  const auto span = load_.close(time);
  if (!span) return;
  const double length = without_excluded(*span);
  loads_ += length;
  pending_load_ = length;
  if (std::exchange(next_load_is_sync_, false)) {
    times_.badput[BadputType::DataLoadingSync] += length;
  }
}

void Pass::close_segment(std::int64_t cut) {
  const auto found = segment_.close(cut, customs_, how_.excluded, times_);
  times_.productive += found.productive;
  // Without exclusions only the last part counts, as there.
  times_.max_productive_step = how_.excluded == nullptr
                                   ? found.max_step
                                   : std::max(times_.max_productive_step, found.max_step);
  times_.excluded += found.excluded;
}

void Pass::take_step(const MeasurementEntry& entry) {
  if (segment_.add(entry.step, entry.time)) return;
  ++times_.disruptions;
  close_segment(entry.step);
  if (pending_load_ && how_.excluded == nullptr) {
    times_.badput[BadputType::DataLoadingSync] += *std::exchange(pending_load_, std::nullopt);
  }
  next_load_is_sync_ = true;
  const double last = segment_.last_time();
  if (job_start_ && *job_start_ > last) {
    times_.badput[BadputType::InfrastructureRecovery] += without_excluded({last, *job_start_});
  }
  segment_ = StepSegment();
  segment_.add(entry.step, entry.time);
}

void Pass::take(const MeasurementEntry& entry) {
  switch (entry.kind) {
    case Kind::Step:
      return take_step(entry);
    case Kind::JobStart:
      job_start_ = entry.time;
      return;
    case Kind::JobEnd:
      job_end_ = entry.time;
      return;
    case Kind::AcceleratorInitStart:
      return init_.open(entry.time);
    case Kind::AcceleratorInitEnd:
      return end_phase(BadputType::TpuInitialization, init_, entry.time);
    case Kind::PreparationStart:
      return preparation_.open(entry.time);
    case Kind::PreparationEnd:
      return end_phase(BadputType::TrainingPrep, preparation_, entry.time);
    case Kind::DataLoadingStart:
      return load_.open(entry.time);
    case Kind::DataLoadingEnd:
      return end_load(entry.time);
    default:
      return;
  }
}

void Pass::finish() {
  const bool any_step = !segment_.empty();
  if (any_step) {
    const auto highest = segment_.highest();
    close_segment(highest.step);
    if (job_end_) {
      times_.productive += without_excluded({highest.time, *job_end_});
      times_.max_productive_step = highest.step;
    }
  }
  const double async = loads_ - times_.badput[BadputType::DataLoadingSync];
  times_.badput[BadputType::DataLoadingAsync] = std::max(0.0, async);
  if (how_.excluded == nullptr) add_checkpoints();
  // Without steps the saves that were taken away would leave less than nothing.
  if (!any_step) times_.productive = 0;
  if (counts_elastic()) add_elastic();
}

/// Of several reports of one checkpoint (several hosts) the mean counts; an emergency restore is a
/// report as others are.
void Pass::add_checkpoints() {
  struct Reports {
    double sum = 0;
    int count = 0;
  };
  std::map<std::tuple<bool, std::int64_t, bool>, Reports> all;  // saved, step, persistent
  for (const auto& entry : entries_) {
    if (entry.kind != Kind::Save && entry.kind != Kind::Restore &&
        entry.kind != Kind::EmergencyRestore) {
      continue;
    }
    const auto& checkpoint = log_.checkpoint(entry);
    auto& reports = all[{entry.kind == Kind::Save, entry.step, checkpoint.persistent}];
    reports.sum += checkpoint.seconds;
    ++reports.count;
  }
  for (const auto& [key, reports] : all) {
    const auto type = std::get<0>(key) ? BadputType::CheckpointSave : BadputType::CheckpointRestore;
    times_.badput[type] += reports.sum / reports.count;
  }
  // The original has counted the saves as parts of steps, since it knows only when steps begin.
  times_.productive -= times_.badput[BadputType::CheckpointSave];
}

void Pass::add_elastic() {
  std::map<std::int32_t, OpenPhase> waits;
  for (const auto& entry : entries_) {
    if (entry.kind == Kind::ElasticWaitStart) waits[entry.detail].open(entry.time);
    if (entry.kind != Kind::ElasticWaitEnd) continue;
    const auto span = waits[entry.detail].close_after(entry.time);
    if (!span) continue;
    // Whatever the case of its letters, as in the original.
    const bool up = in_small_letters(log_.name(entry)).find("scale_up") != std::string::npos;
    times_.badput[up ? BadputType::ElasticScaleUp : BadputType::ElasticSliceDown] += span->length();
  }
  for (const auto& span : reinits_) {
    times_.badput[BadputType::ElasticReinitialization] += span.length();
  }
}

}  // namespace

std::string_view badput_name(BadputType type) {
  constexpr std::array<std::string_view, kBadputTypes> kNames = {
      "",
      "TPU_INITIALIZATION",
      "TRAINING_PREP",
      "PROGRAM_STARTUP",
      "DATA_LOADING_SYNC",
      "DATA_LOADING_ASYNC",
      "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
      "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
      "WASTED_PROGRESS_FROM_DISRUPTION",
      "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
      "CUSTOM_BADPUT_EVENTS",
      "OTHER",
      "ELASTIC_SLICE_DOWN",
      "ELASTIC_SCALE_UP",
      "ELASTIC_REINITIALIZATION"};
  return kNames[static_cast<std::size_t>(type)];
}

json::object badput_json(const BadputTimes& times) {
  json::object object;
  for (std::size_t i = 1; i < kBadputTypes; ++i) {
    const auto type = static_cast<BadputType>(i);
    if (type != BadputType::CustomEvents) object[badput_name(type)] = times[type];
  }
  json::object custom;
  for (const auto& [name, value] : times.custom) custom[name] = value;
  object[badput_name(BadputType::CustomEvents)] = std::move(custom);
  return object;
}

CustomEvents::CustomEvents(const MeasurementLog& log, std::span<const MeasurementEntry> entries) {
  std::map<std::int32_t, OpenPhase> open;
  for (const auto& entry : entries) {
    if (entry.kind == Kind::CustomStart) open[entry.detail].open(entry.time);
    if (entry.kind != Kind::CustomEnd) continue;
    if (const auto span = open[entry.detail].close_after(entry.time)) {
      events_.push_back({log.name(entry), *span});
      longest_ = std::max(longest_, span->length());
    }
  }
  std::ranges::stable_sort(events_, {}, [](const Event& event) { return event.span.begin; });
}

std::span<const CustomEvents::Event> CustomEvents::around(const TimeSpan& span) const {
  const auto start = [](const Event& event) { return event.span.begin; };
  const auto first = std::ranges::lower_bound(events_, span.begin - longest_, {}, start);
  const auto last = std::ranges::upper_bound(first, events_.end(), span.end, {}, start);
  return {first, last};
}

MeasuredTimes measure(const MeasurementLog& log, std::span<const MeasurementEntry> entries,
                      const MeasureBy& how) {
  return Pass(log, entries, how).run();
}

}  // namespace elastrun::goodput
