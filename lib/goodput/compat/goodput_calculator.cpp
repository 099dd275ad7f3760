// SPDX-License-Identifier: Apache-2.0

#include "goodput/compat/goodput_calculator.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <iterator>
#include <numeric>
#include <optional>
#include <ranges>
#include <unordered_set>
#include <utility>
#include <vector>

namespace elastrun::goodput {
namespace {

using Kind = MeasurementKind;

// Doubles below it name every whole number.
constexpr std::int64_t kMostWhole = 9'000'000'000'000'000;

bool is_named(Kind kind) {
  return kind == Kind::CustomStart || kind == Kind::CustomEnd || kind == Kind::ElasticWaitStart ||
         kind == Kind::ElasticWaitEnd;
}

std::optional<double> finite(const telemetry::Value* value) {
  const auto read = value == nullptr ? std::nullopt : telemetry::as_real(*value);
  return read && std::isfinite(*read) ? read : std::nullopt;
}

const std::string* text_in(Members members, std::string_view name) {
  return std::get_if<std::string>(find_in(members, name));
}

double first_time(Members members) {
  for (const auto& [name, value] : members) {
    if (!name.contains("time")) continue;
    if (const auto read = finite(&value)) return *read;
  }
  return 0;
}

/// Members that an entry needs. The first one that is missing or wrong is the status.
class Needed {
 public:
  explicit Needed(Members members) : members_(members) {}

  double number(std::string_view name) {
    const auto read = finite(find_in(members_, name));
    if (!read) refuse(fmt::format("'{}' is missing or not a number", name));
    return read.value_or(0);
  }
  /// Steps are whole numbers; the recorder cuts fractions off.
  std::int64_t step(std::string_view name) {
    const double read = number(name);
    const bool near = read >= -kMostWhole && read <= kMostWhole;
    if (!near) refuse(fmt::format("'{}' is {}, out of range", name, read));
    return near ? static_cast<std::int64_t>(read) : 0;
  }
  std::string text(std::string_view name) {
    const auto* text = text_in(members_, name);
    if (text == nullptr) refuse(fmt::format("'{}' is missing or not a text", name));
    return text == nullptr ? std::string() : *text;
  }
  Status status;

 private:
  void refuse(std::string text) {
    if (status) status = fail(Code::Protocol, std::move(text));
  }
  Members members_;
};

void read_checkpoint(Members members, Needed& needed, ReadEntry& read) {
  const std::string_view waits = read.entry.kind == Kind::Save ? "blocking_" : "";
  auto& [entry, detail] = read;
  entry.step = needed.step("step");
  detail.seconds = needed.number(fmt::format("checkpoint_manager_{}duration_secs", waits));
  // The original takes what lies in a bucket for persistent, and all else for local.
  detail.persistent = needed.text("directory").starts_with("gs://");
  entry.time = first_time(members);
  detail.begin = finite(find_in(members, fmt::format("checkpoint_manager_{}start_time", waits)))
                     .value_or(entry.time);
}

}  // namespace

std::string_view measurement_name(Kind kind) {
  constexpr std::string_view kNames[] = {"step_start_time",
                                         "job_start_time",
                                         "job_end_time",
                                         "tpu_init_start_time",
                                         "tpu_init_end_time",
                                         "training_prep_start_time",
                                         "training_prep_end_time",
                                         "data_loading_start_time",
                                         "data_loading_end_time",
                                         "custom_badput_event_start_time",
                                         "custom_badput_event_end_time",
                                         "save",
                                         "restore",
                                         "emergency_restore",
                                         "elastic_wait_start_time",
                                         "elastic_wait_end_time",
                                         "elastic_reinit_start_time",
                                         "elastic_reinit_end_time",
                                         "elastic_slice_counts_timestamp",
                                         "step_end_time",
                                         "checkpoint_save_start_time",
                                         "checkpoint_save_end_time",
                                         "checkpoint_restore_start_time",
                                         "checkpoint_restore_end_time",
                                         ""};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

std::vector<telemetry::Attribute> members_of(const json::object& entry) {
  std::vector<telemetry::Attribute> members;
  for (const auto& [name, value] : entry) {
    members.emplace_back(name, value.is_structured() ? std::nan("") : telemetry::to_value(value));
  }
  return members;
}

const telemetry::Value* find_in(Members members, std::string_view name) {
  const auto found = std::ranges::find(members, name, &telemetry::Attribute::first);
  return found == members.end() ? nullptr : &found->second;
}

std::uint64_t count_in(Members members, std::string_view name) {
  const double count = finite(find_in(members, name)).value_or(0);
  return count >= 1 && count <= kMostWhole ? static_cast<std::uint64_t>(count) : 0;
}

Kind kind_of(Members members) {
  const auto* event = text_in(members, "event_type");
  for (const Kind kind : {Kind::Save, Kind::Restore, Kind::EmergencyRestore}) {
    if (event != nullptr && *event == measurement_name(kind)) return kind;
  }
  // An entry of the original has one of them; of a stranger's the first in this order decides.
  for (auto kind = Kind::Step; kind != Kind::Other; kind = Kind(static_cast<int>(kind) + 1)) {
    if (!is_of_orbax(kind) && find_in(members, measurement_name(kind)) != nullptr) return kind;
  }
  return Kind::Other;
}

Result<ReadEntry> read_measurement(Members members) {
  ReadEntry read;
  auto& [entry, detail] = read;
  Needed needed(members);
  entry.kind = kind_of(members);
  if (is_of_orbax(entry.kind)) {
    read_checkpoint(members, needed, read);
  } else if (entry.kind == Kind::Other) {
    entry.time = first_time(members);
  } else {
    entry.time = needed.number(measurement_name(entry.kind));
  }
  if (entry.kind == Kind::Step || entry.kind == Kind::StepEnd) {
    entry.step = needed.step("step_count");
  } else if (entry.kind == Kind::CustomStart || entry.kind == Kind::CustomEnd) {
    detail.name = in_capitals(needed.text("custom_badput_event_type"));
  } else if (is_named(entry.kind)) {
    detail.name = needed.text("elastic_wait_event_type");
  } else if (entry.kind == Kind::SliceCounts) {
    detail.active = needed.number("active_slices");
    detail.available = needed.number("available_slices");
    detail.total = needed.number("total_slices");
  }
  if (!needed.status) return std::unexpected(needed.status.error());
  return read;
}

bool MeasurementLog::add_step(std::int64_t step, double time, double log_time) {
  if (!std::isfinite(time) || step < -kMostWhole || step > kMostWhole) return false;
  entries_.push_back({Kind::Step, -1, step, time, std::isnan(log_time) ? time : log_time});
  return true;
}

Status MeasurementLog::add(Members members, double log_time) {
  auto read = read_measurement(members);
  if (!read) return std::unexpected(read.error());
  auto& [entry, detail] = *read;
  entry.log_time = std::isnan(log_time) ? entry.time : log_time;
  const bool named = is_named(entry.kind);
  if (named || is_of_orbax(entry.kind) || entry.kind == Kind::SliceCounts) {
    entry.detail = static_cast<std::int32_t>(details_.size());
    // Of a name that is known already the place is the same one.
    if (named) entry.detail = named_.try_emplace(detail.name, entry.detail).first->second;
    if (std::cmp_equal(entry.detail, details_.size())) details_.push_back(std::move(detail));
  }
  entries_.push_back(entry);
  return {};
}

TimePoint time_of_entry(double posix_seconds, TimePoint now, WallTime wall) {
  const std::chrono::duration<double> since_epoch = wall.time_since_epoch();
  // What is older than a day was not said by this worker.
  const double ago = std::clamp(since_epoch.count() - posix_seconds, 0.0, 86'400.0);
  return now - from_seconds(ago);
}

namespace {

// Statistics of step times as the original defines them.

constexpr double kSpread = 3.0;  // in median absolute deviations, not scaled
constexpr std::size_t kRecent = 100, kBaseline = StepPace::kKept - kRecent;

double mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Linear between order statistics, at (n - 1) * fraction. `values` must not be empty;
/// 0 <= fraction <= 1.
double percentile(std::span<const double> values, double fraction) {
  std::vector<double> sorted(values.begin(), values.end());
  // As numpy.percentile().
  const double place = static_cast<double>(sorted.size() - 1) * fraction;
  const auto low = static_cast<std::size_t>(place);
  const auto at_low = sorted.begin() + static_cast<std::ptrdiff_t>(low);
  std::nth_element(sorted.begin(), at_low, sorted.end());
  if (low + 1 == sorted.size()) return *at_low;
  const double above = *std::min_element(at_low + 1, sorted.end());
  return *at_low + (above - *at_low) * (place - static_cast<double>(low));
}

/// The mean of the times that are at most median + 3 * MAD; times below `shortest` are left out.
/// None if no time is left.
std::optional<double> ideal_step_time(std::span<const double> step_times, double shortest = 1) {
  std::vector<double> times;
  std::ranges::copy_if(step_times, std::back_inserter(times),
                       [shortest](double time) { return time >= shortest; });
  if (times.empty()) return std::nullopt;
  const double middle = percentile(times, 0.5);
  std::vector<double> distances(times.size());
  std::ranges::transform(times, distances.begin(),
                         [middle](double time) { return std::abs(time - middle); });
  const double limit = middle + kSpread * percentile(distances, 0.5);
  std::erase_if(times, [limit](double time) { return time > limit; });
  return mean(times);
}

/// One number for a dashboard, from the last kKept deviations of steps in order: the mean of fewer
/// than 100; the 90th percentile of the last 100; with all 1,100 less the median of the 1,000
/// before.
double deviation_metric(std::span<const double> deviations) {
  std::vector<double> all(deviations.size());
  std::ranges::transform(deviations, all.begin(), [](double value) { return std::abs(value); });
  if (all.size() < kRecent) return mean(all);
  const std::span<const double> values(all);
  const double recent = percentile(values.last(kRecent), 0.9);
  if (all.size() < StepPace::kKept) return recent;
  return recent - percentile(values.first(kBaseline), 0.5);
}

}  // namespace

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
  return deviation_metric(times);
}

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

namespace {

using Spans = std::vector<TimeSpan>;

/// Sorted, with those that overlap or touch made one.
Spans merged(Spans spans) {
  std::ranges::sort(spans, {}, &TimeSpan::begin);
  Spans apart;
  for (const auto& span : spans) {
    if (apart.empty() || span.begin > apart.back().end) {
      apart.push_back(span);
    } else {
      apart.back().end = std::max(apart.back().end, span.end);
    }
  }
  return apart;
}

/// How long `span` lies within `spans`, which are as merged() returns them, or do not overlap.
double overlap(const TimeSpan& span, const Spans& spans) {
  double seconds = 0;
  for (const auto& other : spans) {
    seconds += std::max(0.0, std::min(span.end, other.end) - std::max(span.begin, other.begin));
  }
  return seconds;
}

/// Sorted by step; of several of one step the last one counts.
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

/// Closed spans of the custom events of a log, by start, so that those of a step are found at once.
class CustomEvents {
 public:
  struct Event {
    std::string_view name;
    TimeSpan span;
  };
  CustomEvents(const MeasurementLog& log, std::span<const MeasurementEntry> entries) {
    std::map<std::int32_t, OpenPhase> open;
    for (const auto& entry : entries) {
      if (entry.kind == Kind::CustomStart) open[entry.detail].open(entry.time);
      if (entry.kind != Kind::CustomEnd) continue;
      if (const auto span = open[entry.detail].close_after(entry.time)) {
        events_.push_back({log.detail(entry.detail).name, *span});
        longest_ = std::max(longest_, span->length());
      }
    }
    std::ranges::stable_sort(events_, {}, begin_of);
  }

  /// Those that may overlap `span`; the caller looks closer.
  std::span<const Event> around(const TimeSpan& span) const {
    const auto first = std::ranges::lower_bound(events_, span.begin - longest_, {}, begin_of);
    return {first, std::ranges::upper_bound(first, events_.end(), span.end, {}, begin_of)};
  }

 private:
  static double begin_of(const Event& event) { return event.span.begin; }

  std::vector<Event> events_;
  double longest_ = 0;
};

/// The steps between two disruptions of a measured job, in order of arrival: none has a number
/// twice.
class StepSegment {
 public:
  struct Step {
    std::int64_t number = 0;
    double time = 0;  // of its start, POSIX seconds
  };

  /// False if there is such a step already; nothing is added then.
  bool add(std::int64_t number, double time) {
    // As long as the numbers rise no set is kept beside them: a log may have a million steps.
    if (numbers_.empty() && !steps_.empty() && number <= steps_.back().number) {
      if (std::ranges::binary_search(steps_, number, {}, &Step::number)) return false;
      for (const auto& one : steps_) numbers_.insert(one.number);
    }
    if (!numbers_.empty() && !numbers_.insert(number).second) return false;
    steps_.push_back({number, time});
    return true;
  }
  const std::vector<Step>& steps() const { return steps_; }

 private:
  std::vector<Step> steps_;
  std::unordered_set<std::int64_t> numbers_;
};

/// The calculation of ml-goodput-measurement 0.2.3 with all that is odd about it, so that its
/// numbers can be compared: section 2 of that library's description, in the words of its methods.
/// O(n log n) at most, where the original is O(n * custom events).
class Pass {
 public:
  /// `entries` are of `log`. `excluded` as merged() returns it; null: the pass without exclusions,
  /// which alone knows of slices, as there.
  Pass(const MeasurementLog& log, std::span<const MeasurementEntry> entries, bool elastic,
       const Spans* excluded)
      : log_(log),
        entries_(entries),
        elastic_(elastic && excluded == nullptr),
        excluded_(excluded),
        customs_(log, entries) {
    if (!elastic_) return;
    OpenPhase reinit;
    for (const auto& entry : entries) {
      if (entry.kind == Kind::ElasticReinitStart) reinit.open(entry.time);
      if (entry.kind != Kind::ElasticReinitEnd) continue;
      if (const auto span = reinit.close_after(entry.time)) reinits_.push_back(*span);
    }
  }

  /// Seconds, without shares: its buckets may overlap, as there, and OTHER is 0.
  CalculatedGoodput run() {
    for (const auto& entry : entries_) take(entry);
    finish();
    return std::move(found_);
  }
  /// How long each step took, of a pass with exclusions.
  std::vector<StepSeconds> steps;

 private:
  double& badput(BadputType type) { return found_.badput_seconds[type]; }

  void take(const MeasurementEntry& entry) {
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

  void take_step(const MeasurementEntry& entry) {
    if (segment_.add(entry.step, entry.time)) return;
    ++found_.disruptions;
    close_segment(entry.step);
    if (pending_load_ && excluded_ == nullptr) {
      badput(BadputType::DataLoadingSync) += *std::exchange(pending_load_, std::nullopt);
    }
    next_load_is_sync_ = true;
    const double last = segment_.steps().back().time;
    if (job_start_ && *job_start_ > last) {
      badput(BadputType::InfrastructureRecovery) += without_excluded({last, *job_start_});
    }
    segment_ = StepSegment();
    segment_.add(entry.step, entry.time);
  }

  void end_phase(BadputType type, OpenPhase& phase, double time) {
    const auto span = phase.close(time);
    if (!span) return;
    const double inside_reinit = overlap(*span, reinits_);
    const double length = without_excluded(*span);
    badput(type) += inside_reinit > 0 ? std::max(0.0, length - inside_reinit) : length;
  }

  void end_load(double time) {
    const auto span = load_.close(time);
    if (!span) return;
    const double length = without_excluded(*span);
    loads_ += length;
    pending_load_ = length;
    if (std::exchange(next_load_is_sync_, false)) {
      badput(BadputType::DataLoadingSync) += length;
    }
  }

  /// What custom events take of one step: those that lie within it, or with exclusions parts of
  /// them.
  double book_customs(const TimeSpan& step) {
    double seconds = 0;
    for (const auto& [name, event] : customs_.around(step)) {
      TimeSpan part = event;
      if (excluded_ != nullptr) {
        part = {std::max(event.begin, step.begin), std::min(event.end, step.end)};
        if (part.length() <= 0) continue;
      } else if (event.begin < step.begin || event.end > step.end) {
        continue;
      }
      found_.badput_seconds.custom[std::string(name)] += part.length();
      seconds += part.length();
    }
    return seconds;
  }

  /// Steps beyond `cut` are wasted.
  void close_segment(std::int64_t cut) {
    const auto& all = segment_.steps();
    const bool whole = excluded_ == nullptr;
    auto& most = found_.max_productive_step;
    // Without exclusions only the last part counts, as there.
    if (whole) most = 0;
    if (cut == 0 && whole) return;
    const auto lowest = std::ranges::min_element(all, {}, &StepSegment::Step::number)->number;
    double productive = 0, excluded = 0, first = 0;
    std::int64_t max_step = 0;
    std::size_t others = 0, counted = 0;
    for (std::size_t i = 1; i < all.size(); ++i) {
      const auto& [number, start] = all[i - 1];
      const TimeSpan span{start, all[i].time};
      const double cut_out = whole ? 0 : overlap(span, *excluded_);
      excluded += cut_out;
      if (all[i].number > cut) {
        const double lost = span.length() - cut_out;
        badput(BadputType::WastedProgress) += whole ? lost : std::max(0.0, lost);
        continue;
      }
      // Across a gap the time of one step is not known.
      if (all[i].number != number + 1) continue;
      const double seconds = std::max(0.0, span.length() - book_customs(span) - cut_out);
      productive += seconds;
      max_step = number;
      if (number == lowest) first = seconds;
      if (!whole) steps.push_back({number, seconds});
      if (number != lowest) ++others;
      ++counted;
    }
    most = whole ? max_step : std::max(most, max_step);
    if (!whole && counted > 0) others = counted - 1;  // as there
    if (others > 0) {
      const double mean_time = (productive - first) / static_cast<double>(others);
      const double startup = std::max(0.0, first - mean_time);
      badput(BadputType::ProgramStartup) += startup;
      productive -= startup;
      if (!whole) steps.push_back({lowest, first - startup});
    }
    found_.productive_seconds += productive;
    found_.excluded_seconds += excluded;
  }

  void finish() {
    const auto& last = segment_.steps();
    const bool any_step = !last.empty();
    if (any_step) {
      const auto highest = *std::ranges::max_element(last, {}, &StepSegment::Step::number);
      close_segment(highest.number);
      if (job_end_) {
        found_.productive_seconds += without_excluded({highest.time, *job_end_});
        found_.max_productive_step = highest.number;
      }
    }
    const double async = loads_ - badput(BadputType::DataLoadingSync);
    badput(BadputType::DataLoadingAsync) = std::max(0.0, async);
    if (excluded_ == nullptr) add_checkpoints();
    // Without steps the saves that were taken away would leave less than nothing.
    if (!any_step) found_.productive_seconds = 0;
    if (elastic_) add_elastic();
  }

  /// Of several reports of one checkpoint (several hosts) the mean counts; an emergency restore is
  /// a report as others are.
  void add_checkpoints() {
    struct Reports {
      double sum = 0;
      int count = 0;
    };
    std::map<std::tuple<bool, std::int64_t, bool>, Reports> all;  // saved, step, persistent
    for (const auto& entry : entries_) {
      if (!is_of_orbax(entry.kind)) continue;
      const auto& checkpoint = log_.detail(entry.detail);
      auto& reports = all[{entry.kind == Kind::Save, entry.step, checkpoint.persistent}];
      reports.sum += checkpoint.seconds;
      ++reports.count;
    }
    for (const auto& [key, reports] : all) {
      const auto type =
          std::get<0>(key) ? BadputType::CheckpointSave : BadputType::CheckpointRestore;
      badput(type) += reports.sum / reports.count;
    }
    // The original has counted the saves as parts of steps, since it knows only when steps begin.
    found_.productive_seconds -= badput(BadputType::CheckpointSave);
  }

  void add_elastic() {
    std::map<std::int32_t, OpenPhase> waits;
    for (const auto& entry : entries_) {
      if (entry.kind == Kind::ElasticWaitStart) waits[entry.detail].open(entry.time);
      if (entry.kind != Kind::ElasticWaitEnd) continue;
      const auto span = waits[entry.detail].close_after(entry.time);
      if (!span) continue;
      // Whatever the case of its letters, as in the original.
      const bool up =
          to_lower(log_.detail(entry.detail).name).find("scale_up") != std::string::npos;
      badput(up ? BadputType::ElasticScaleUp : BadputType::ElasticSliceDown) += span->length();
    }
    for (const auto& span : reinits_) {
      badput(BadputType::ElasticReinitialization) += span.length();
    }
  }

  /// Its length without what is excluded, which is added up.
  double without_excluded(const TimeSpan& span) {
    if (excluded_ == nullptr) return span.length();
    const double cut = overlap(span, *excluded_);
    found_.excluded_seconds += cut;
    return std::max(0.0, span.length() - cut);
  }

  const MeasurementLog& log_;
  std::span<const MeasurementEntry> entries_;
  const bool elastic_;
  const Spans* const excluded_;
  CustomEvents customs_;
  Spans reinits_;

  CalculatedGoodput found_;
  StepSegment segment_;
  OpenPhase init_, preparation_, load_;
  std::optional<double> pending_load_;
  bool next_load_is_sync_ = true;
  double loads_ = 0;
  std::optional<double> job_start_, job_end_;
};

double share(double seconds, double total) {
  return seconds > 0 && seconds < total ? seconds / total * 100 : 0;
}

/// Adds the shares of `total`; OTHER is what is left.
CalculatedGoodput with_shares(CalculatedGoodput all, double total) {
  all.percent = all.productive_seconds / total * 100;
  all.total_seconds = total;
  auto& [seconds, custom] = all.badput_seconds;
  const auto zero_if_impossible = [total](double& one) {
    if (one < 0 || one > total) one = 0;
  };
  for (double& one : seconds) zero_if_impossible(one);
  for (auto& [name, one] : custom) zero_if_impossible(one);
  // What is loaded beside the steps takes nothing from the total; the sum below adds it again.
  double known = all.productive_seconds - all.badput_seconds[BadputType::DataLoadingAsync];
  for (const double one : seconds) known += one;
  for (const auto& [name, one] : custom) known += one;
  all.badput_seconds[BadputType::Other] = std::max(0.0, total - known);
  for (std::size_t i = 0; i < kBadputTypes; ++i) {
    all.badput_percent.seconds[i] = share(seconds[i], total);
  }
  for (const auto& [name, one] : custom) all.badput_percent.custom[name] = share(one, total);
  return all;
}

/// The original's datetimes have whole microseconds, of two that are as near the even one. Without
/// libm, which the programs do not need.
double as_datetime(double seconds) {
  constexpr double kAllWhole = 0x1p52;  // from here on doubles have no fractions
  const double size = std::abs(seconds * 1e6);
  // The sum has no room for a fraction, so the processor rounds it, to the even one (IEEE 754). It
  // must not be simplified: -ffast-math would take both terms away.
  const double whole = size < kAllWhole ? size + kAllWhole - kAllWhole : size;
  return std::copysign(whole, seconds) / 1e6;
}

std::vector<StepSeconds> step_durations(std::span<const MeasurementEntry> entries) {
  std::vector<StepSeconds> durations;
  const MeasurementEntry* last = nullptr;
  for (const auto& entry : entries) {
    if (entry.kind != MeasurementKind::Step) continue;
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

/// Without ends of the job after which it has started again: with these the original takes its time
/// from the first start to such an end, and has no answer if that is too short for the steps.
std::vector<MeasurementEntry> without_stale_ends(std::span<const MeasurementEntry> entries) {
  std::vector<MeasurementEntry> kept;
  const auto starts = entries | std::views::reverse;
  const auto last =
      std::ranges::find(starts, MeasurementKind::JobStart, &MeasurementEntry::kind).base();
  std::copy_if(entries.begin(), last, std::back_inserter(kept),
               [](const auto& entry) { return entry.kind != MeasurementKind::JobEnd; });
  kept.insert(kept.end(), last, entries.end());
  return kept;
}

bool is_within(const CalculatedGoodput& found, double total) {
  return found.productive_seconds >= 0 && found.productive_seconds <= total;
}

std::unexpected<Error> outside() {
  return fail(Code::Usage, "the productive time is not within the total time");
}

/// From the first job start to the last job end, or now, in whole microseconds.
Result<TimeSpan> job_span(std::span<const MeasurementEntry> entries, double now) {
  std::optional<double> begin, end;
  for (const auto& entry : entries) {
    if (entry.kind == MeasurementKind::JobStart && !begin) begin = entry.time;
    if (entry.kind == MeasurementKind::JobEnd) end = entry.time;
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

CalculatedGoodput GoodputCalculator::measure(Entries entries, const std::vector<TimeSpan>* excluded,
                                             std::vector<StepSeconds>* steps) {
  Pass pass(log_, entries, kind_ == Kind::Elastic, excluded);
  auto found = pass.run();
  if (steps != nullptr) *steps = std::move(pass.steps);
  disruptions_ = found.disruptions;
  return found;
}

void GoodputCalculator::measure_again(Entries entries) {
  measured_ = measure(entries);
  measured_entries_ = entries.size();
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
  const auto steps = std::ranges::count(entries, MeasurementKind::Step, &MeasurementEntry::kind);
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

Result<CalculatedGoodput> GoodputCalculator::job(double now, std::optional<double> ideal,
                                                 std::optional<double> until) {
  std::vector<MeasurementEntry> room;
  // What an earlier question has seen stays known, as with the original.
  until_ = std::max(until_, until.value_or(now));
  const auto entries = entries_until(until_, room);
  if (!measured_ || measured_entries_ != entries.size()) measure_again(entries);
  auto span = job_span(entries, now);
  if (!span) return std::unexpected(span.error());
  if (!is_within(*measured_, span->length())) {
    const auto current = without_stale_ends(entries);
    measure_again(current);
    span = job_span(current, now);
    if (!span || !is_within(*measured_, span->length())) return outside();
  }
  deviate(entries, ideal);
  auto answer = with_shares(*measured_, span->length());
  answer.disruptions = disruptions_;
  answer.ideal_step_time = deviations_.ideal;
  const std::span<const StepSeconds> all(deviations_.seconds);
  answer.step_deviation_metric =
      deviation_metric(values_of(all.last(std::min(all.size(), StepPace::kKept))));
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

Result<CalculatedGoodput> GoodputCalculator::window(const TimeSpan& window) {
  const auto entries = entries_in(window);
  if (entries.empty()) return fail(Code::Usage, "the log has no entry in the window");
  const double total = as_datetime(std::min(window.end, entries.back().time)) -
                       as_datetime(std::max(window.begin, entries.front().time));
  if (total <= 0) return fail(Code::Usage, "the entries of the window span no time");
  auto found = measure(entries);
  if (!is_within(found, total)) return outside();
  auto answer = with_shares(std::move(found), total);
  answer.slices = slices(entries, window);
  return answer;
}

Result<CalculatedGoodput> GoodputCalculator::job_without(std::vector<TimeSpan> spans, double now,
                                                         std::optional<double> ideal) {
  for (const auto& span : spans) {
    if (!(span.length() > 0)) return fail(Code::Usage, "an excluded span ends before it begins");
  }
  std::vector<MeasurementEntry> room;
  const auto entries = entries_until(now, room);
  const auto excluded = merged(std::move(spans));
  std::vector<StepSeconds> steps;
  auto found = measure(entries, &excluded, &steps);
  const auto span = job_span(entries, now);
  const double total = (span ? span->length() : 0) - found.excluded_seconds;
  if (total <= 0) {
    return CalculatedGoodput{.max_productive_step = found.max_productive_step,
                             .total_seconds = total,
                             .excluded_seconds = found.excluded_seconds,
                             .disruptions = found.disruptions};
  }
  keep_last_of_each(steps);
  // As deviate() leaves it, which would otherwise replace these deviations at the next question.
  deviations_.steps = std::ranges::count(entries, MeasurementKind::Step, &MeasurementEntry::kind);
  deviate_from(ideal, std::move(steps));
  return with_shares(std::move(found), total);
}

/// The counts are a step function; the time before the first of them weighs nothing.
std::optional<SliceEfficiency> GoodputCalculator::slices(std::span<const MeasurementEntry> entries,
                                                         const TimeSpan& span) const {
  if (kind_ != Kind::Elastic) return std::nullopt;
  std::vector<MeasurementEntry> counts;
  std::ranges::copy_if(entries, std::back_inserter(counts), [&](const auto& entry) {
    return entry.kind == MeasurementKind::SliceCounts && entry.time <= span.end;
  });
  if (counts.empty()) return std::nullopt;
  std::ranges::stable_sort(counts, {}, &MeasurementEntry::time);
  SliceEfficiency sums;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto& slices = log_.detail(counts[i].detail);
    const double from = std::max(counts[i].time, span.begin);
    const double until =
        i + 1 < counts.size() ? std::max(counts[i + 1].time, span.begin) : span.end;
    // A share of no slices is NaN or infinite, and so would be the whole sum.
    if (slices.total == 0) continue;
    sums.stepping += slices.active / slices.total * (until - from);
    sums.available += slices.available / slices.total * (until - from);
  }
  return SliceEfficiency{sums.stepping / span.length(), sums.available / span.length()};
}

}  // namespace elastrun::goodput
