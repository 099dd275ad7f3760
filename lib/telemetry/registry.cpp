// SPDX-License-Identifier: Apache-2.0
#include "telemetry/registry.hpp"

#include "telemetry/family.hpp"
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

}  // namespace

Registry::Registry(const Clock& clock) : clock_(clock) {}
Registry::~Registry() = default;

Result<std::shared_ptr<Series>> Registry::series(
    Kind kind, const std::string& type, Spec spec, std::vector<std::string> labels,
    const std::function<std::shared_ptr<Series>()>& make, std::source_location where) {
  if (const auto fault = fault_of(spec, labels)) return refuse(spec, *fault);
  const std::lock_guard lock(mutex_);
  auto& family = families_[{spec.scope, spec.name}];
  if (family == nullptr) {
    auto views = spec.views.empty() ? default_views(kind) : spec.views;
    for (const auto& [pattern, forced] : overrides_) {
      if (fits_pattern(pattern, spec.name)) views = forced;
    }
    family = std::make_shared<Family>(std::make_shared<const Spec>(std::move(spec)), kind, type,
                                      where, std::move(views));
    // What was switched before the instrument existed holds for it, too.
    for (const auto& [pattern, on] : switches_) {
      if (fits_pattern(pattern, family->spec->name)) family->enabled = on;
    }
  } else if (family->kind != kind || family->type != type || *family->spec != spec) {
    return refuse(spec, fmt::format("at {} it is another one than at {}", place(where),
                                    place(family->where)));
  }
  // Known, and what is added without the labels goes nowhere.
  if (labels.empty() && !family->spec->label_keys.empty()) return make();
  return series_of(*family, std::move(labels), make);
}

Result<std::shared_ptr<Series>> Registry::series_of(
    Family& family, std::vector<std::string> labels,
    const std::function<std::shared_ptr<Series>()>& make) {
  auto found = family.entries.find(labels);
  if (found == family.entries.end() && family.entries.size() >= kSeriesOfInstrument) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    // The overflow series: a wrong number of labels tells it from all others.
    labels.assign(1, "");
    if (family.spec->label_keys.size() == 1) labels.clear();
    found = family.entries.find(labels);
  }
  if (found != family.entries.end()) return found->second.series;
  return make_entry(family, std::move(labels), make()).series;
}

Registry::Entry& Registry::make_entry(Family& family, std::vector<std::string> labels,
                                      std::shared_ptr<Series> made) {
  const TimePoint now = clock_.now();
  // Before it is in the map, where other threads find it: it must not count while it is switched
  // off.
  made->enable(family.enabled);
  Entry entry{labels, std::move(made)};
  entry.start = entry.changed = now;
  const auto at = family.entries.emplace(std::move(labels), std::move(entry)).first;
  apply_views(family, at->second);
  return at->second;
}

void Registry::apply_views(Family& family, Entry& entry) {
  auto* const stat = dynamic_cast<StatSeries*>(entry.series.get());
  // First: the windows that it feeds go with the old views.
  if (stat != nullptr) stat->feed(nullptr);
  for (auto& old : entry.views) {
    if (old.exact) retired_.push_back(std::move(old.exact));
  }
  entry.views.clear();
  for (const auto& view : family.views) {
    auto& state = entry.views.emplace_back(view);
    const bool sketch = view.aggregations.need_sketch() || family.kind == Kind::Histogram;
    if (sketch) entry.series->want_sketch();
    // A view that is added later counts from now on, and not from the start of the series.
    state.cursor.base = entry.totals;
    if (view.window.period != Duration::zero()) {
      state.index = clock_.now().time_since_epoch() / view.window.period;
    }
    if (view.window.samples != 0 && stat != nullptr) {
      state.exact = std::make_unique<ExactWindows>(clock_, view.window, sketch);
      stat->feed(state.exact.get());
    }
  }
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
  auto views = spec.views.empty() ? default_views(kind) : spec.views;
  family = std::make_shared<Family>(std::make_shared<const Spec>(std::move(spec)), kind, "observed",
                                    where, std::move(views));
  family->observer = std::move(observer);
  return Observation([this, family] { end_observation(*family); });
}

void Registry::end_observation(Family& family) {
  Observer ended;  // goes when no lock is held any more
  // In the order of run_observer(): the other way round two threads would wait for each other.
  const std::lock_guard asking(family.asking);
  const std::lock_guard lock(mutex_);
  ended.swap(family.observer);
  for (Cursor* const cursor : cursors_) {
    for (const auto& [labels, entry] : family.entries) cursor->places_.erase(entry.series.get());
  }
  families_.erase({family.spec->scope, family.spec->name});
}

void Registry::run_observers() {
  std::vector<std::shared_ptr<Family>> observed;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, family] : families_) {
      if (family->observer && family->enabled) observed.push_back(family);
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
  for (auto& [labels, entry] : family.entries) static_cast<GaugeSeries&>(*entry.series).forget();
  const bool is_sum = family.kind != Kind::Gauge;
  for (auto& [labels, value] : seen) {
    const auto series = series_of(family, std::move(labels),
                                  [is_sum] { return std::make_shared<GaugeSeries>(is_sum); });
    static_cast<GaugeSeries&>(**series).set(value);
  }
}

void Registry::end(const std::string& scope, const std::string& name,
                   const std::vector<std::string>& labels) {
  const std::lock_guard lock(mutex_);
  const auto family = families_.find({scope, name});
  if (family == families_.end()) return;
  const auto found = family->second->entries.find(labels);
  if (found == family->second->entries.end()) return;
  // By address: a series that is made later could get the same one, and with it what a cursor has
  // told of this one.
  for (Cursor* const cursor : cursors_) cursor->places_.erase(found->second.series.get());
  for (auto& view : found->second.views) {
    if (view.exact) retired_.push_back(std::move(view.exact));
  }
  family->second->entries.erase(found);
  if (family->second->entries.empty() && !family->second->observer) families_.erase(family);
}

std::vector<SeriesInfo> Registry::select(std::string_view pattern) const {
  const std::lock_guard lock(mutex_);
  std::vector<SeriesInfo> all;
  for (const auto& [key, family] : families_) {
    if (!fits_pattern(pattern, family->spec->name)) continue;
    for (const auto& [labels, entry] : family->entries) {
      all.push_back({family->spec, family->kind, attributes_of(*family->spec, labels),
                     family->views, family->enabled});
    }
  }
  return all;
}

std::size_t Registry::enable(std::string_view pattern, bool on) {
  const std::lock_guard lock(mutex_);
  // Kept for instruments that are made later, in order: the last one that fits wins.
  switches_.emplace_back(pattern, on);
  std::size_t count = 0;
  for (const auto& [key, family] : families_) {
    if (!fits_pattern(pattern, family->spec->name)) continue;
    family->enabled = on;
    for (auto& [labels, entry] : family->entries) entry.series->enable(on);
    count += family->entries.size();
  }
  return count;
}

void Registry::override_views(std::string pattern, std::vector<View> views) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, family] : families_) {
    if (!fits_pattern(pattern, family->spec->name)) continue;
    family->views = views;
    for (auto& [labels, entry] : family->entries) {
      harvest(entry, clock_.now());  // the new windows begin here
      apply_views(*family, entry);
    }
  }
  overrides_.emplace_back(std::move(pattern), std::move(views));
}

Registry& process_registry() {
  // Never destroyed: threads may still count while the process ends.
  static auto* const registry = new Registry(process_pipeline().clock());
  return *registry;
}

}  // namespace elastrun::telemetry
