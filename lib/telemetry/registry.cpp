// SPDX-License-Identifier: Apache-2.0
#include "telemetry/registry.hpp"

#include "core/text.hpp"
#include "telemetry/route.hpp"

#include <fmt/format.h>
#include <set>

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

/// One view's window as the Window record of its series. Its count is that of the window, so that
/// an empty one can tell what an earlier one had.
Record window_record(const Spec& spec, const std::vector<std::string>& labels, bool whole,
                     Series::Closed closed) {
  auto& [view, window, summary] = closed;
  window.dropped += summary.not_finite;
  window.unit = spec.unit;
  for (const auto one : view.aggregations.list()) {
    Value value = window.no_data ? Value() : summary.get(one);
    if (one == Aggregation::Count) value = static_cast<std::int64_t>(window.count);
    const auto* const real = std::get_if<double>(&value);
    if (whole && one != Aggregation::Stddev && real != nullptr) {
      value = static_cast<std::int64_t>(*real);
    }
    window.aggregates.emplace_back(std::string(to_text(one)), std::move(value));
  }
  if (summary.sketch) window.sketch = std::make_shared<const Sketch>(std::move(*summary.sketch));
  Record record;
  record.kind = Record::Kind::Window;
  record.scope = spec.scope;
  record.name = spec.name;
  record.attributes = attributes_of(spec, labels);
  record.window = std::make_shared<const Window>(std::move(window));
  return record;
}

}  // namespace

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

std::shared_ptr<Registry::Family> Registry::make_family(Kind kind, bool whole, bool observed,
                                                        Spec spec, std::source_location where) {
  auto views = spec.views.empty() ? default_views(kind) : spec.views;
  for (const auto& [pattern, forced] : overrides_) {
    if (fits_pattern(pattern, spec.name)) views = forced;
  }
  return std::make_shared<Family>(std::make_shared<const Spec>(std::move(spec)), kind, whole,
                                  observed, where, std::move(views));
}

Result<std::shared_ptr<Series>> Registry::series(Kind kind, bool whole, Spec spec,
                                                 std::vector<std::string> labels,
                                                 std::source_location where) {
  if (const auto fault = fault_of(spec, labels)) return refuse(spec, *fault);
  const std::lock_guard lock(mutex_);
  auto& family = families_[{spec.scope, spec.name}];
  if (family == nullptr) {
    family = make_family(kind, whole, false, std::move(spec), where);
  } else if (family->observed || family->kind != kind || family->whole != whole ||
             *family->spec != spec) {
    return refuse(spec, fmt::format("at {} it is another one than at {}", place(where),
                                    place(family->where)));
  }
  // Known, and what is added without the labels goes nowhere.
  if (labels.empty() && !family->spec->label_keys.empty()) {
    return std::make_shared<Series>(clock_, kind, whole);
  }
  return series_of(*family, std::move(labels));
}

std::shared_ptr<Series> Registry::series_of(Family& family, std::vector<std::string> labels) {
  auto found = family.series.find(labels);
  if (found == family.series.end() && family.series.size() >= kSeriesOfInstrument) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    // The overflow series: a wrong number of labels tells it from all others.
    labels.assign(1, "");
    if (family.spec->label_keys.size() == 1) labels.clear();
    found = family.series.find(labels);
  }
  if (found != family.series.end()) return found->second;
  auto made = std::make_shared<Series>(clock_, family.kind, family.whole);
  made->set_views(family.views);
  return family.series.emplace(std::move(labels), std::move(made)).first->second;
}

Result<Observation> Registry::observe(Kind kind, Spec spec, Observer observer,
                                      std::source_location where) {
  if (kind != Kind::Gauge && kind != Kind::Counter && kind != Kind::UpDown) {
    return refuse(spec, "an observer reports a gauge or a total");
  }
  // With the labels that it will report; the family alone is made now.
  if (const auto fault = fault_of(spec, spec.label_keys)) return refuse(spec, *fault);
  const std::lock_guard lock(mutex_);
  auto& family = families_[{spec.scope, spec.name}];
  if (family != nullptr) {
    return refuse(spec, fmt::format("at {} it is observed, at {} it is another one", place(where),
                                    place(family->where)));
  }
  family = make_family(kind, false, true, std::move(spec), where);
  family->observer = std::move(observer);
  return Observation([this, family] { end_observation(*family); });
}

void Registry::end_observation(Family& family) {
  Observer ended;  // goes when no lock is held any more
  // In the order of run_observer(): the other way round two threads would wait for each other.
  const std::lock_guard asking(family.asking);
  const std::lock_guard lock(mutex_);
  ended.swap(family.observer);
  families_.erase({family.spec->scope, family.spec->name});
}

void Registry::run_observers() {
  std::vector<std::shared_ptr<Family>> observed;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, family] : families_) {
      if (family->observer) observed.push_back(family);
    }
  }
  // Outside of the mutex, since an observer is foreign code: it may make an instrument, which takes
  // that mutex. `asking` waits for one that runs meanwhile.
  for (const auto& family : observed) run_observer(*family);
}

void Registry::run_observer(Family& family) {
  const std::lock_guard asking(family.asking);
  if (!family.observer) return;  // it has ended meanwhile
  std::vector<std::pair<std::vector<std::string>, double>> seen;
  try {
    family.observer([&](double value, std::vector<std::string> labels) {
      // A wrong number of labels would be the overflow series.
      labels.resize(family.spec->label_keys.size());
      seen.emplace_back(std::move(labels), value);
    });
  } catch (...) {  // foreign code: no data this time
    failed_.fetch_add(1, std::memory_order_relaxed);
    seen.clear();
  }
  const std::lock_guard lock(mutex_);
  // What the observer has not named this time has no value any more: a device that was taken out
  // would keep its last one.
  for (const auto& [labels, series] : family.series) series->forget();
  for (auto& [labels, value] : seen) series_of(family, std::move(labels))->set(value);
}

void Registry::end(const std::string& scope, const std::string& name,
                   const std::vector<std::string>& labels) {
  const std::lock_guard lock(mutex_);
  const auto family = families_.find({scope, name});
  if (family == families_.end()) return;
  family->second->series.erase(labels);
  if (family->second->series.empty() && !family->second->observer) families_.erase(family);
}

void Registry::override_views(std::string pattern, std::vector<View> views) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, family] : families_) {
    if (!fits_pattern(pattern, family->spec->name)) continue;
    family->views = views;
    for (const auto& [labels, series] : family->series) series->set_views(views);
  }
  overrides_.emplace_back(std::move(pattern), std::move(views));
}

Snapshot Registry::collect(std::string_view pattern) {
  run_observers();
  const std::lock_guard lock(mutex_);
  Snapshot snapshot{++tick_, {clock_.now(), clock_.wall()}, {}};
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
      auto seen = series->see(snapshot.at.mono);
      snapshot.points.push_back({family->spec, family->kind, attributes_of(*family->spec, labels),
                                 std::move(seen.value), std::move(seen.summary), seen.no_data,
                                 seen.start, seen.changed});
    }
  }
  return snapshot;
}

std::optional<TimePoint> Registry::due() const {
  const std::lock_guard lock(mutex_);
  std::optional<TimePoint> first;
  for (const auto& [key, family] : families_) {
    // An observer has no series before it is asked for the first time.
    if (family->series.empty() && !family->observer) continue;
    for (const auto& view : family->views) {
      const Duration period = view.window.period;
      if (period == Duration::zero()) continue;
      // At multiples of the period, so that the windows of all series end together.
      const TimePoint end(period * (clock_.now().time_since_epoch() / period + 1));
      if (!first || end < *first) first = end;
    }
  }
  return first;
}

std::vector<Record> Registry::close_windows(Closing closing) {
  run_observers();
  const std::lock_guard lock(mutex_);
  const Stamp now{clock_.now(), clock_.wall()};
  std::vector<Record> records;
  for (const auto& [key, family] : families_) {
    for (const auto& [labels, series] : family->series) {
      series->close_windows(now.mono, closing == Closing::AtTheEnd, [&](Series::Closed closed) {
        records.push_back(window_record(*family->spec, labels, family->whole, std::move(closed)));
        records.back().stamp = now;
      });
    }
  }
  return records;
}

std::optional<TimePoint> Registry::step(Pipeline& pipeline) {
  for (auto& record : close_windows()) pipeline.emit(std::move(record));
  return due();
}

Registry& process_registry() {
  // Never destroyed: threads may still count while the process ends.
  static auto* const registry = new Registry(process_pipeline().clock());
  return *registry;
}

}  // namespace elastrun::telemetry
