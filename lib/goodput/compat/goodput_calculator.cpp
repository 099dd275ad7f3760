// SPDX-License-Identifier: Apache-2.0

#include "goodput/compat/goodput_calculator.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <ranges>
#include <unordered_set>
#include <utility>
#include <vector>

namespace elastrun::goodput {

std::vector<TimeSpan> merged(std::vector<TimeSpan> spans) {
  std::ranges::sort(spans, {}, &TimeSpan::begin);
  std::vector<TimeSpan> apart;
  for (const auto& span : spans) {
    if (apart.empty() || span.begin > apart.back().end) {
      apart.push_back(span);
    } else {
      apart.back().end = std::max(apart.back().end, span.end);
    }
  }
  return apart;
}

double overlap(const TimeSpan& span, const std::vector<TimeSpan>& spans) {
  double seconds = 0;
  for (const auto& other : spans) {
    seconds += std::max(0.0, std::min(span.end, other.end) - std::max(span.begin, other.begin));
  }
  return seconds;
}

namespace {

// The numbers of the original, whose answers these have to be.
constexpr double kShortest = 1.0;
constexpr double kSpread = 3.0;  // in median absolute deviations, not scaled
constexpr std::size_t kRecent = 100;
constexpr std::size_t kBaseline = kMostDeviations - kRecent;

double mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double magnitude(double value) {
  return value < 0 ? -value : value;
}

std::vector<double> magnitudes(std::span<const double> values) {
  std::vector<double> all(values.size());
  std::ranges::transform(values, all.begin(), magnitude);
  return all;
}

std::vector<double> long_enough(std::span<const double> step_times, double shortest) {
  std::vector<double> times;
  std::ranges::copy_if(step_times, std::back_inserter(times),
                       [shortest](double time) { return time >= shortest; });
  return times;
}

/// Beyond it a step is anomalous. `times` must not be empty.
double normal_limit(std::span<const double> times) {
  const double middle = percentile(times, 0.5);
  std::vector<double> distances(times.size());
  std::ranges::transform(times, distances.begin(),
                         [middle](double time) { return magnitude(time - middle); });
  return middle + kSpread * percentile(distances, 0.5);
}

}  // namespace

void keep_last_of_each(std::vector<StepSeconds>& steps) {
  if (!std::ranges::is_sorted(steps, {}, &StepSeconds::step)) {
    std::ranges::stable_sort(steps, {}, &StepSeconds::step);
  }
  std::size_t kept = 0;
  for (const auto& one : steps) {
    const bool again = kept > 0 && steps[kept - 1].step == one.step;
    steps[again ? kept - 1 : kept++] = one;
  }
  steps.resize(kept);
}

double percentile(std::span<const double> values, double fraction) {
  std::vector<double> sorted(values.begin(), values.end());
  // Linear between two neighbours, as numpy.percentile().
  const double place = static_cast<double>(sorted.size() - 1) * fraction;
  const auto low = static_cast<std::size_t>(place);
  const auto at_low = sorted.begin() + static_cast<std::ptrdiff_t>(low);
  std::nth_element(sorted.begin(), at_low, sorted.end());
  if (low + 1 == sorted.size()) return *at_low;
  const double above = *std::min_element(at_low + 1, sorted.end());
  return *at_low + (above - *at_low) * (place - static_cast<double>(low));
}

std::optional<double> ideal_step_time(std::span<const double> step_times, double shortest) {
  auto times = long_enough(step_times, shortest);
  if (times.empty()) return std::nullopt;
  std::erase_if(times, [limit = normal_limit(times)](double time) { return time > limit; });
  return mean(times);
}

AnomalousSteps anomalous_steps(std::span<const double> step_times) {
  AnomalousSteps found;
  const auto times = long_enough(step_times, kShortest);
  if (times.empty()) return found;
  const double limit = normal_limit(times);
  std::vector<double> normal;  // short ones, too: as in the original
  for (const double time : step_times) (time > limit ? found.times : normal).push_back(time);
  found.extra = std::accumulate(found.times.begin(), found.times.end(), 0.0) -
                static_cast<double>(found.times.size()) * mean(normal);
  return found;
}

double deviation_metric(std::span<const double> deviations, DeviationOver over) {
  const auto all = magnitudes(deviations);
  if (all.size() < kRecent) return mean(all);
  const std::span<const double> values(all);
  const double recent = percentile(values.last(kRecent), 0.9);
  if (over == DeviationOver::Window || all.size() < kBaseline + kRecent) return recent;
  return recent - percentile(values.last(kBaseline + kRecent).first(kBaseline), 0.5);
}

void StepPace::step(std::int64_t number, TimePoint now) {
  if (last_ && number == last_->number) return;
  if (last_ && number > last_->number && now >= last_->at) {
    times_.push_back(to_seconds(now - last_->at) / static_cast<double>(number - last_->number));
  }
  last_ = {number, now};
}

std::optional<double> StepPace::ideal() const {
  return ideal_step_time(std::vector(times_.begin(), times_.end()), 0);
}

std::optional<double> StepPace::deviation() const {
  const auto usual = ideal();
  if (!usual) return std::nullopt;
  std::vector times(times_.begin(), times_.end());
  for (double& time : times) time -= *usual;
  return deviation_metric(times, DeviationOver::Job);
}

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

namespace {

using EntryKind = MeasurementKind;

/// Seconds made shares of `total`, and OTHER is what is left.
struct Shares {
  double percent = 0;
  BadputTimes seconds;
  BadputTimes percents;
};

double share(double seconds, double total) {
  return seconds > 0 && seconds < total ? seconds / total * 100 : 0;
}

Shares shares_of(const MeasuredTimes& times, double total) {
  Shares shares{times.productive / total * 100, times.badput, {}};
  const auto zero_if_impossible = [total](double& seconds) {
    if (seconds < 0 || seconds > total) seconds = 0;
  };
  for (double& seconds : shares.seconds.seconds) zero_if_impossible(seconds);
  for (auto& [name, seconds] : shares.seconds.custom) zero_if_impossible(seconds);
  // What is loaded beside the steps takes nothing from the total; the sum below adds it again.
  double known = times.productive - shares.seconds[BadputType::DataLoadingAsync];
  for (const double seconds : shares.seconds.seconds) known += seconds;
  for (const auto& [name, seconds] : shares.seconds.custom) known += seconds;
  shares.seconds[BadputType::Other] = std::max(0.0, total - known);
  std::ranges::transform(shares.seconds.seconds, shares.percents.seconds.begin(),
                         [total](double seconds) { return share(seconds, total); });
  for (const auto& [name, seconds] : shares.seconds.custom) {
    shares.percents.custom[name] = share(seconds, total);
  }
  return shares;
}

/// To a whole number, of two that are as near to the even one, as Python; without libm (see
/// exponential.hpp).
double round_half_even(double number) {
  constexpr double kAllWhole = 0x1p52;  // from here on doubles have no fractions
  const double size = std::abs(number);
  // The sum has no room for a fraction, so the processor rounds it, to the even one (IEEE 754). It
  // must not be simplified: -ffast-math would take both terms away.
  return size < kAllWhole ? std::copysign(size + kAllWhole - kAllWhole, number) : number;
}

/// The original's datetimes have whole microseconds.
double as_datetime(double seconds) {
  return round_half_even(seconds * 1e6) / 1e6;
}

std::vector<StepSeconds> step_durations(std::span<const MeasurementEntry> entries) {
  std::vector<StepSeconds> durations;
  const MeasurementEntry* last = nullptr;
  for (const auto& entry : entries) {
    if (entry.kind != EntryKind::Step) continue;
    // Between other numbers lies more than one step.
    if (last != nullptr && entry.step == last->step + 1) {
      durations.push_back({last->step, entry.time - last->time});
    }
    last = &entry;
  }
  keep_last_of_each(durations);
  return durations;
}

std::vector<double> values_of(std::span<const StepSeconds> steps) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const auto& one : steps) values.push_back(one.seconds);
  return values;
}

/// Those that a metric of all deviations needs.
std::span<const StepSeconds> last_of(std::span<const StepSeconds> steps) {
  return steps.last(std::min(steps.size(), kMostDeviations));
}

/// Without ends of the job after which it has started again: with these the original takes its time
/// from the first start to such an end, and has no answer if that is too short for the steps.
std::vector<MeasurementEntry> without_stale_ends(std::span<const MeasurementEntry> entries) {
  std::vector<MeasurementEntry> kept;
  const auto starts = entries | std::views::reverse;
  const auto last = std::ranges::find(starts, EntryKind::JobStart, &MeasurementEntry::kind).base();
  std::copy_if(entries.begin(), last, std::back_inserter(kept),
               [](const auto& entry) { return entry.kind != EntryKind::JobEnd; });
  kept.insert(kept.end(), last, entries.end());
  return kept;
}

/// From the first job start to the last job end, or now, in whole microseconds.
Result<TimeSpan> job_span(std::span<const MeasurementEntry> entries, double now) {
  std::optional<double> begin, end;
  for (const auto& entry : entries) {
    if (entry.kind == EntryKind::JobStart && !begin) begin = entry.time;
    if (entry.kind == EntryKind::JobEnd) end = entry.time;
  }
  if (!begin) return fail(Code::Usage, "the log has no start of the job");
  const TimeSpan span{as_datetime(*begin), as_datetime(end.value_or(now))};
  if (span.length() <= 0) {
    return fail(Code::Usage, "the total time of the job is zero: it ends before it begins");
  }
  return span;
}

}  // namespace

/// All of them, or those of them in `room`.
GoodputCalculator::Entries GoodputCalculator::entries_until(
    double time, std::vector<MeasurementEntry>& room) const {
  const auto has_come = [time](const MeasurementEntry& entry) { return entry.log_time <= time; };
  if (std::ranges::all_of(log_.entries(), has_come)) return log_.entries();
  std::ranges::copy_if(log_.entries(), std::back_inserter(room), has_come);
  return room;
}

void GoodputCalculator::measure_again(Entries entries) {
  measured_ = measure(log_, entries, {kind_ == Kind::Elastic, nullptr});
  measured_entries_ = entries.size();
  disruptions_ = measured_->disruptions;
}

/// What cannot be computed leaves the deviations as they are until there are new steps, as there.
void GoodputCalculator::deviate_from(std::optional<double> ideal, std::vector<StepSeconds> steps) {
  if (!ideal) ideal = goodput::ideal_step_time(values_of(steps));
  if (steps.empty() || !ideal || *ideal == 0) return;
  for (auto& step : steps) step.seconds -= *ideal;
  deviations_.ideal = ideal;
  deviations_.seconds = std::move(steps);
}

void GoodputCalculator::deviate(Entries entries, std::optional<double> ideal) {
  const auto steps = std::ranges::count(entries, EntryKind::Step, &MeasurementEntry::kind);
  if (std::exchange(deviations_.steps, steps) == steps) return;
  deviate_from(ideal, step_durations(entries));
  for (auto& step : deviations_.seconds) step.seconds = std::abs(step.seconds);
}

const std::vector<StepSeconds>& GoodputCalculator::step_deviations(double now,
                                                                   std::optional<double> ideal) {
  std::vector<MeasurementEntry> room;
  until_ = std::max(until_, now);
  deviate(entries_until(until_, room), ideal);
  return deviations_.seconds;
}

Result<JobGoodput> GoodputCalculator::job(double now, std::optional<double> ideal,
                                          std::optional<double> until) {
  std::vector<MeasurementEntry> room;
  // What an earlier question has seen stays known, as with the original.
  until_ = std::max(until_, until.value_or(now));
  const auto entries = entries_until(until_, room);
  if (!measured_ || measured_entries_ != entries.size()) measure_again(entries);
  auto span = job_span(entries, now);
  if (!span) return std::unexpected(span.error());
  if (measured_->productive < 0 || measured_->productive > span->length()) {
    const auto current = without_stale_ends(entries);
    measure_again(current);
    span = job_span(current, now);
    if (!span || measured_->productive < 0 || measured_->productive > span->length()) {
      return fail(Code::Usage, "the productive time is not within the total time");
    }
  }
  const double total = span->length();
  auto shares = shares_of(*measured_, total);
  deviate(entries, ideal);
  JobGoodput answer;
  answer.percent = shares.percent;
  answer.badput_percent = std::move(shares.percents);
  answer.max_productive_step = measured_->max_productive_step;
  answer.productive_seconds = measured_->productive;
  answer.badput_seconds = std::move(shares.seconds);
  answer.total_seconds = total;
  answer.disruptions = disruptions_;
  answer.ideal_step_time = deviations_.ideal;
  answer.step_deviation_metric =
      deviation_metric(values_of(last_of(deviations_.seconds)), DeviationOver::Job);
  answer.slices = slices(entries, *span);
  return answer;
}

/// Those that the log got after the begin of the window and until its end; of windows that move
/// forward, from the begin of the first on. The entry's own time decides as well.
std::vector<MeasurementEntry> GoodputCalculator::entries_in(const TimeSpan& window) {
  const bool forward = last_window_ && last_window_->found &&
                       window.begin >= last_window_->span.begin &&
                       window.end > last_window_->span.end;
  const double read_from = forward ? last_window_->read_from : window.begin;
  std::vector<MeasurementEntry> kept;
  std::ranges::copy_if(log_.entries(), std::back_inserter(kept), [&](const auto& entry) {
    return entry.log_time > read_from && entry.log_time <= window.end && entry.time > window.begin;
  });
  last_window_ = Window{window, read_from, !kept.empty()};
  return kept;
}

Result<WindowGoodput> GoodputCalculator::window(const TimeSpan& window) {
  const auto entries = entries_in(window);
  if (entries.empty()) return fail(Code::Usage, "the log has no entry in the window");
  const double total = as_datetime(std::min(window.end, entries.back().time)) -
                       as_datetime(std::max(window.begin, entries.front().time));
  if (total <= 0) return fail(Code::Usage, "the entries of the window span no time");
  const auto times = measure(log_, entries, {kind_ == Kind::Elastic, nullptr});
  disruptions_ = times.disruptions;
  if (times.productive < 0 || times.productive > total) {
    return fail(Code::Usage, "the productive time is not within the total time");
  }
  auto shares = shares_of(times, total);
  return WindowGoodput{shares.percent, std::move(shares.percents), times.max_productive_step,
                       total,          times.disruptions,          slices(entries, window)};
}

Result<ExcludedGoodput> GoodputCalculator::job_without(std::vector<TimeSpan> spans, double now,
                                                       std::optional<double> ideal) {
  for (const auto& span : spans) {
    if (!(span.length() > 0)) return fail(Code::Usage, "an excluded span ends before it begins");
  }
  std::vector<MeasurementEntry> room;
  const auto entries = entries_until(now, room);
  const auto excluded = merged(std::move(spans));
  auto times = measure(log_, entries, {kind_ == Kind::Elastic, &excluded});
  disruptions_ = times.disruptions;
  ExcludedGoodput answer;
  answer.max_productive_step = times.max_productive_step;
  answer.excluded_seconds = times.excluded;
  answer.disruptions = times.disruptions;
  const auto span = job_span(entries, now);
  answer.total_seconds = (span ? span->length() : 0) - times.excluded;
  if (answer.total_seconds <= 0) return answer;
  auto shares = shares_of(times, answer.total_seconds);
  answer.percent = shares.percent;
  answer.badput_percent = std::move(shares.percents);
  answer.productive_seconds = times.productive;
  answer.badput_seconds = std::move(shares.seconds);
  keep_last_of_each(times.steps);
  // As deviate() leaves it, which would otherwise replace these deviations at the next question.
  deviations_.steps = std::ranges::count(entries, EntryKind::Step, &MeasurementEntry::kind);
  deviate_from(ideal, std::move(times.steps));
  return answer;
}

/// The counts are a step function; the time before the first of them weighs nothing.
std::optional<SliceEfficiency> GoodputCalculator::slices(std::span<const MeasurementEntry> entries,
                                                         const TimeSpan& span) const {
  if (kind_ != Kind::Elastic) return std::nullopt;
  std::vector<MeasurementEntry> counts;
  std::ranges::copy_if(entries, std::back_inserter(counts), [&](const auto& entry) {
    return entry.kind == EntryKind::SliceCounts && entry.time <= span.end;
  });
  std::ranges::stable_sort(counts, {}, &MeasurementEntry::time);
  SliceEfficiency sums;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto& slices = log_.slices(counts[i]);
    const double from = std::max(counts[i].time, span.begin);
    const double until =
        i + 1 < counts.size() ? std::max(counts[i + 1].time, span.begin) : span.end;
    // A share of no slices is NaN or infinite, and so would be the whole sum.
    if (slices.total == 0) continue;
    sums.stepping += slices.active / slices.total * (until - from);
    sums.available += slices.available / slices.total * (until - from);
  }
  return SliceEfficiency{sums.stepping / span.length(), sums.available / span.length(),
                         !counts.empty()};
}

}  // namespace elastrun::goodput
