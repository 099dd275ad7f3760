// SPDX-License-Identifier: Apache-2.0
#include "telemetry/registry.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "telemetry/route.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>

namespace elastrun::telemetry {
namespace {

std::unexpected<Error> refuse(const Spec& spec, std::string_view why) {
  return fail(Code::Usage, fmt::format("instrument '{}': {}", spec.name, why));
}

std::optional<std::string> fault_of(const Spec& spec, const std::vector<std::string>& labels) {
  if (!is_name(spec.name)) {
    return "a name is a letter, then letters, digits and _ . - /, at most 255 characters";
  }
  for (const auto& key : spec.label_keys) {
    if (!is_name(key)) return fmt::format("'{}' cannot be the key of a label", key);
  }
  if (std::set(spec.label_keys.begin(), spec.label_keys.end()).size() != spec.label_keys.size()) {
    return "a label is there twice";
  }
  if (!labels.empty() && labels.size() != spec.label_keys.size()) {
    return fmt::format("{} label values for {} keys", labels.size(), spec.label_keys.size());
  }
  return std::nullopt;
}

std::string place(const std::source_location& where) {
  return fmt::format("{}:{}", where.file_name(), where.line());
}

/// The labels of a series as attributes.
std::vector<Attribute> attributes_of(const Spec& spec, const std::vector<std::string>& labels) {
  // The series for what exceeds the limit, by OpenTelemetry's name.
  if (labels.size() != spec.label_keys.size()) return {{"otel.metric.overflow", true}};
  std::vector<Attribute> attributes;
  attributes.reserve(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    attributes.emplace_back(spec.label_keys[i], labels[i]);
  }
  return attributes;
}

std::set<Aggregation> aggregations_of(Kind kind) {
  using enum Aggregation;
  switch (kind) {
    case Kind::Counter:
    case Kind::UpDown:
      return {Sum};
    case Kind::Gauge:
      return {Aggregation::Value};
    case Kind::Stat:
      return {Mean, Count, Max, Min};
    case Kind::Histogram:
      break;
  }
  return {Count, Sum, Max, Min, P50, P90, P99};
}

/// The number of the window of that length in which a moment lies.
std::int64_t window_at(TimePoint when, Duration length) {
  return length == Duration::zero() ? 0 : when.time_since_epoch() / length;
}

/// What cannot be the key of a label is made one, as a name is: two of them stay two.
std::vector<std::string> keys_of(const Registry::SampleKey& key) {
  std::vector<std::string> keys;
  if (!key.rank.empty()) keys.emplace_back("rank");
  for (const auto& label : key.labels) {
    auto name = instrument_name(label.first);
    while (std::ranges::find(keys, name) != keys.end()) name += '_';
    keys.push_back(std::move(name));
  }
  return keys;
}

Spec with_help(Spec spec, std::string_view help) {
  if (spec.help.empty()) spec.help = help;
  return spec;
}

std::string samples_name(const std::string& name) {
  return instrument_name(name + ".samples");
}

constexpr std::string_view kOtherKind = "the name is that of another kind of metric";

}  // namespace

bool is_name(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !text.empty() && text.size() <= 255 && is_letter(text.front()) &&
         std::ranges::all_of(text, [&](char c) {
           return is_letter(c) || (c >= '0' && c <= '9') || std::string_view("_.-/").contains(c);
         });
}

std::string instrument_name(std::string_view text) {
  constexpr std::size_t kLongest = 255;
  std::string name;
  for (const char c : text.substr(0, kLongest)) {
    const char tried[] = {'a', c};
    name += is_name({tried, 2}) ? c : '_';
  }
  // It begins with no letter, say a digit.
  if (!is_name(name)) name = ("m_" + name).substr(0, kLongest);
  return name;
}

bool fits_pattern(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() != '*') {
    return !name.empty() && pattern.front() == name.front() &&
           fits_pattern(pattern.substr(1), name.substr(1));
  }
  // One star stays within a part between dots, two go over them.
  const bool all = pattern.starts_with("**");
  pattern.remove_prefix(all ? 2 : 1);
  for (;;) {
    if (fits_pattern(pattern, name)) return true;
    if (name.empty() || (!all && name.front() == '.')) return false;
    name.remove_prefix(1);
  }
}

std::vector<Attribute> aggregates_of(const Summary& summary, const std::set<Aggregation>& chosen,
                                     bool whole) {
  std::vector<Attribute> all;
  for (const auto one : chosen) {
    const bool is_there = !needs_sketch(one) || (summary.sketch && summary.count > 0);
    const bool is_whole = one == Aggregation::Count || (whole && one != Aggregation::Stddev);
    const double number = summary.of(one);
    Value value;
    if (is_there) value = is_whole ? Value(static_cast<std::int64_t>(number)) : Value(number);
    all.emplace_back(std::string(to_text(one)), std::move(value));
  }
  return all;
}

Series::Series(Kind kind, bool whole, TimePoint start) : kind_(kind), whole_(whole), start_(start) {
  if (kind == Kind::Histogram) {
    closed_.sketch.emplace();
    open_.sketch.emplace();
  }
}

void Series::add(const Summary& batch) {
  // The sum of finite sums may still be beyond what a double holds, and would stay there.
  if (!std::isfinite(closed_.sum + open_.sum + batch.sum)) return;
  closed_.merge(batch);
  if (!closed_.sketch) return;
  auto& sketch = *closed_.sketch;
  // A worker sends what it likes: values far apart would make a bucket for each step between them.
  while (std::max(sketch.positive().counts.size(), sketch.negative().counts.size()) >
         kMostBuckets) {
    sketch.downscale(sketch.scale() - 1);
  }
}

Value Series::value() const {
  if (is_total() && whole_) return static_cast<std::int64_t>(number_);
  return is_total() || known_ ? Value(real_) : Value();
}

Summary Series::all() const {
  Summary all = closed_;
  all.merge(open_);
  return all;
}

void Series::open_window(bool sketched) {
  number_before_ = number_;
  real_before_ = real_;
  open_ = {};
  if (sketched) open_.sketch.emplace();
}

/// What the open window comes to, of a total its rise, of a gauge what it holds; opens the next.
Summary Series::take_window(bool sketched) {
  Summary summary;
  if (is_total()) {
    // Computed in whole numbers: as doubles, totals above 2^53 would lose the rise of one.
    const auto risen = static_cast<std::int64_t>(number_ - number_before_);
    const double more = whole_ ? static_cast<double>(risen) : real_ - real_before_;
    if (more != 0) summary.add(more);
  } else if (kind_ == Kind::Gauge) {
    if (known_) summary.add(real_);
  } else {
    closed_.merge(open_);
    summary = std::move(open_);
  }
  open_window(sketched);
  return summary;
}

std::vector<Record> records_of(const std::vector<Point>& points, const Stamp& at) {
  std::vector<Record> records;
  records.reserve(points.size());
  for (const auto& point : points) {
    const bool summed = point.kind == Kind::Stat || point.kind == Kind::Histogram;
    const bool has_number = std::holds_alternative<std::int64_t>(point.value) ||
                            std::holds_alternative<double>(point.value);
    if (point.no_data || summed || !has_number) continue;
    auto& record = records.emplace_back();
    record.kind = Record::Kind::Sample;
    record.stamp = at;
    record.scope = point.spec->scope;
    record.name = point.spec->name;
    record.value = point.value;
    for (const auto& label : point.labels) {
      // As the samples of workers have them, so that both are curves of one rank.
      const bool is_rank = label.first == "rank" || label.first == "local_rank";
      const auto* const text = std::get_if<std::string>(&label.second);
      const auto number = is_rank && text != nullptr ? parse_int(*text) : std::nullopt;
      record.attributes.push_back(number ? Attribute(label.first, *number) : label);
    }
    // Readers take differences of totals, and need not guess from the name.
    if (point.kind == Kind::Counter) record.attributes.emplace_back("total", true);
  }
  return records;
}

bool Registry::Family::is_sketched() const {
  return kind == Kind::Histogram || std::ranges::any_of(aggregations, worker::needs_sketch);
}

void Registry::Family::override_with(const std::set<Aggregation>& chosen) {
  aggregations = chosen;
  if (window != Duration::zero()) window = Spec().window;
  tells_empty = false;
}

std::shared_ptr<Registry::Family> Registry::make_family(Kind kind, bool whole, Spec spec,
                                                        std::source_location where) {
  auto family = std::make_shared<Family>(std::make_shared<const Spec>(std::move(spec)), kind, whole,
                                         where, aggregations_of(kind));
  family->window = family->spec->window;
  family->tells_empty = family->spec->tells_empty;
  for (const auto& [pattern, chosen] : overrides_) {
    if (fits_pattern(pattern, family->spec->name)) family->override_with(chosen);
  }
  return family;
}

Result<std::shared_ptr<Series>> Registry::series(Kind kind, bool whole, Spec spec,
                                                 std::vector<std::string> labels,
                                                 std::source_location where) {
  if (const auto fault = fault_of(spec, labels)) return refuse(spec, *fault);
  auto& family = families_[{spec.scope, spec.name}];
  if (family == nullptr) {
    family = make_family(kind, whole, std::move(spec), where);
  } else if (family->observer || family->kind != kind || family->whole != whole ||
             *family->spec != spec) {
    return refuse(spec, fmt::format("at {} it is another one than at {}", place(where),
                                    place(family->where)));
  }
  // Known, and what is added without the labels goes nowhere.
  if (labels.empty() && !family->spec->label_keys.empty()) {
    return std::make_shared<Series>(kind, whole, clock_.now());
  }
  return series_of(*family, std::move(labels));
}

std::shared_ptr<Series> Registry::series_of(Family& family, std::vector<std::string> labels) {
  auto found = family.series.find(labels);
  if (found == family.series.end() && family.series.size() >= kSeriesOfInstrument) {
    // The overflow series: a wrong number of labels tells it from all others.
    labels.assign(1, "");
    if (family.spec->label_keys.size() == 1) labels.clear();
    found = family.series.find(labels);
  }
  if (found != family.series.end()) return found->second;
  const auto now = clock_.now();
  auto made = std::make_shared<Series>(family.kind, family.whole, now);
  made->window_ = window_at(now, family.window);
  made->open_window(family.is_sketched());
  return family.series.emplace(std::move(labels), std::move(made)).first->second;
}

void Registry::run_observers() {
  // An observer is foreign code, which may make an instrument: not while the table is walked.
  std::vector<std::shared_ptr<Family>> observed;
  for (const auto& [key, family] : families_) {
    if (family->observer) observed.push_back(family);
  }
  for (const auto& family : observed) {
    std::vector<std::pair<std::vector<std::string>, double>> seen;
    try {
      family->observer({seen});
    } catch (...) {  // foreign code: no data this time
      seen.clear();
    }
    // What the observer has not named this time has no value any more: a device that was taken out
    // would keep its last one.
    for (const auto& [labels, series] : family->series) series->known_ = false;
    for (auto& [labels, value] : seen) {
      labels.resize(family->spec->label_keys.size());  // else it would be the overflow series
      series_of(*family, std::move(labels))->set(value);
    }
  }
}

void Registry::override_aggregations(std::string pattern, std::set<Aggregation> chosen) {
  for (const auto& [key, family] : families_) {
    if (!fits_pattern(pattern, family->spec->name)) continue;
    family->override_with(chosen);
    for (const auto& [labels, series] : family->series) {
      series->take_window(family->is_sketched());
      series->window_ = window_at(clock_.now(), family->window);
    }
  }
  overrides_.emplace_back(std::move(pattern), std::move(chosen));
}

Snapshot Registry::collect(std::string_view pattern) {
  run_observers();
  Snapshot snapshot{{clock_.now(), clock_.wall()}, {}};
  // Kept from the first collection on: the two clocks are read one after the other, so what lies
  // between them is never the same. Set back: what began since would begin in the future.
  constexpr Duration kLeast = std::chrono::milliseconds(100);
  const auto ahead = snapshot.at.wall.time_since_epoch() - snapshot.at.mono.time_since_epoch();
  if (!ahead_ || *ahead_ - ahead > kLeast) ahead_ = ahead;
  snapshot.ahead = ahead_;
  std::size_t count = 0;
  for (const auto& [key, family] : families_) count += family->series.size();
  snapshot.points.reserve(count);
  for (const auto& [key, family] : families_) {
    if (!fits_pattern(pattern, family->spec->name)) continue;
    for (const auto& [labels, series] : family->series) {
      auto& point = snapshot.points.emplace_back(family->spec, family->kind,
                                                 attributes_of(*family->spec, labels));
      point.start = std::min(series->start_, snapshot.at.mono);
      point.value = series->value();
      point.no_data = family->kind == Kind::Gauge && !series->known_;
      if (family->kind == Kind::Stat || family->kind == Kind::Histogram) {
        point.summary = series->all();
      }
    }
  }
  return snapshot;
}

std::optional<TimePoint> Registry::due() const {
  std::optional<TimePoint> first;
  for (const auto& [key, family] : families_) {
    // An observer has no series before it is asked for the first time.
    if (family->window == Duration::zero() || (family->series.empty() && !family->observer)) {
      continue;
    }
    const TimePoint end(family->window * (window_at(clock_.now(), family->window) + 1));
    if (!first || end < *first) first = end;
  }
  return first;
}

void Registry::close_window(const Family& family, const std::vector<std::string>& labels,
                            Series& series, const Stamp& now, bool at_the_end,
                            std::vector<Record>& records) {
  const auto length = family.window;
  const std::int64_t index = window_at(now.mono, length);
  const bool early = index <= series.window_;
  if (early && !at_the_end) return;
  auto summary = series.take_window(family.is_sketched());
  const bool nothing = summary.count == 0 && summary.not_finite == 0;
  // The last window of all, in which nothing came: there is nothing to tell.
  if (early && nothing) return;
  Window window{TimePoint(length * series.window_),
                early ? now.mono : TimePoint(length * index),
                early ? series.window_ : index - 1,
                summary.count,
                summary.not_finite,
                false,
                family.spec->unit};
  series.window_ = index;
  if (nothing) {
    // A total has not risen, a gauge keeps what it had; of stats there is nothing to tell.
    const bool is_gauge = family.kind == Kind::Gauge;
    if (!family.tells_empty || !(is_gauge || series.is_total())) return;
    window.no_data = is_gauge && !series.last_;
    if (series.last_) summary.add(*series.last_);
  } else if (family.kind == Kind::Gauge) {
    series.last_ = summary.last;
  }
  window.aggregates = aggregates_of(summary, family.aggregations, family.whole);
  for (auto& [name, value] : window.aggregates) {
    if (window.no_data) value = {};
  }
  if (summary.sketch) window.sketch = std::make_shared<const Sketch>(std::move(*summary.sketch));
  Record& record = records.emplace_back();
  record.kind = Record::Kind::Window;
  record.stamp = now;
  record.scope = family.spec->scope;
  record.name = family.spec->name;
  record.attributes = attributes_of(*family.spec, labels);
  record.window = std::make_shared<const Window>(std::move(window));
}

std::vector<Record> Registry::close_windows(Closing closing) {
  run_observers();
  const Stamp now{clock_.now(), clock_.wall()};
  std::vector<Record> records;
  for (const auto& [key, family] : families_) {
    if (family->window == Duration::zero()) continue;
    for (const auto& [labels, series] : family->series) {
      close_window(*family, labels, *series, now, closing == Closing::AtTheEnd, records);
    }
  }
  return records;
}

Registry::Held Registry::make_held(const SampleKey& key, const Record& sample) {
  Held held;
  const auto& spec = sampled_.at({key.scope, key.name});
  // The first sample of a name fixes its labels; Prometheus and OpenTelemetry have one set of them
  // for each metric.
  if (keys_of(key) != spec.label_keys) {
    held.refusal = "its labels have other names than before";
    return held;
  }
  if (!key.rank.empty()) held.values.push_back(key.rank);
  for (const auto& label : key.labels) held.values.push_back(label.second);
  const bool bucketed = sample.summary && sample.summary->sketch;
  held.kind = bucketed ? Kind::Histogram : key.counts ? Kind::Counter : Kind::Gauge;
  const auto* const help = bucketed     ? "Reported by workers."
                           : key.counts ? "Counted by workers."
                                        : "The last value that was reported.";
  auto made = series(held.kind, false, with_help(spec, help), held.values);
  if (!made) {
    held.refusal = kOtherKind;
    return held;
  }
  held.series = std::move(*made);
  // A worker puts so many that the last value says little.
  if (bucketed || key.counts || key.rank.empty()) return held;
  auto all = with_help(spec, "All values that were reported.");
  all.name = samples_name(key.name);
  if (auto samples = series(Kind::Stat, false, std::move(all), held.values)) {
    held.samples = std::move(*samples);
  }
  return held;
}

/// Null: one name more than there may be.
Registry::Held* Registry::find_held(SampleKey key, const Record& sample) {
  const auto found = held_.find(key);
  if (found != held_.end()) return &found->second;
  Name name(key.scope, key.name);
  if (!sampled_.contains(name)) {
    // Scripts choose the names, and may put a step into one: memory must not grow with that.
    if (sampled_.size() >= kMostNames) return nullptr;
    Spec spec{.name = instrument_name(key.name), .scope = key.scope, .window = {}};
    spec.label_keys = keys_of(key);
    if (sample.meaning) spec.unit = sample.meaning->unit;
    if (sample.meaning) spec.help = sample.meaning->help;
    sampled_.emplace(std::move(name), std::move(spec));
  }
  // A refused name is kept as well, so that its further samples cost a look-up only.
  auto made = make_held(key, sample);
  return &held_.emplace(std::move(key), std::move(made)).first->second;
}

std::string_view Registry::put(const Record& sample) {
  const auto* const flag = std::get_if<bool>(&sample.value);
  const auto number =
      flag != nullptr ? std::optional<double>(*flag ? 1 : 0) : as_real(sample.value);
  if (!number) return "it is not a number";
  const auto rank = sample.whole("rank");
  const auto* const total = sample.find("total");
  SampleKey key{sample.scope, sample.name, rank ? fmt::to_string(*rank) : "",
                total != nullptr && *total == Value(true)};
  if (sample.meaning) key.labels = sample.meaning->labels;
  auto* const held = find_held(std::move(key), sample);
  if (held == nullptr) return "there are too many names";
  if (!held->series) return held->refusal;
  const Summary* const batch = sample.summary.get();
  if (held->kind == Kind::Histogram) {
    if (batch == nullptr || !batch->sketch) return kOtherKind;
    held->series->add(*batch);
  } else if (held->kind == Kind::Gauge) {
    held->series->set(*number);
  } else {
    // Workers send totals, and the series takes rises.
    if (!held->series->count(*number - held->total)) return "a total cannot fall";
    held->total = *number;
  }
  if (!held->samples) return {};
  // A worker that reports faster than it sends tells of several values at once, and a batch has
  // what they come to.
  if (batch != nullptr) {
    held->samples->add(*batch);
  } else if (std::isfinite(*number)) {
    worker::Summary one;  // a sum that would not be finite is refused, as a batch's
    one.add(*number);
    held->samples->add(one);
  }
  return {};
}

std::string_view Registry::take(const Record& sample) {
  const auto why = put(sample);
  if (!why.empty()) ++refused_samples_;
  return why;
}

/// Ends both series with the worker: else its last values would be told as long as the job runs.
void Registry::end(const SampleKey& key, const Held& held) {
  for (const auto& [series, name] : {std::pair(held.series, instrument_name(key.name)),
                                     std::pair(held.samples, samples_name(key.name))}) {
    const auto family = families_.find({key.scope, name});
    if (!series || family == families_.end()) continue;
    family->second->series.erase(held.values);
    if (family->second->series.empty()) families_.erase(family);
  }
}

void Observations::add(Kind kind, Spec spec, Registry::Observer observer) {
  spec.scope = scope_;
  auto& family = registry_.families_[{scope_, spec.name}];
  if (family != nullptr) return log::info("telemetry", "'{}' is there already", spec.name);
  names_.push_back(spec.name);
  family = registry_.make_family(kind, false, std::move(spec), std::source_location::current());
  family->observer = std::move(observer);
}

Observations::~Observations() {
  for (const auto& name : names_) registry_.families_.erase({scope_, name});
}

Registry& process_registry() {
  // Never destroyed: something may be counted while the process ends.
  static auto* const registry = new Registry(process_pipeline().clock());
  return *registry;
}

}  // namespace elastrun::telemetry
