// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sample_series.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <stdexcept>

namespace elastrun::telemetry {
namespace {

std::optional<double> number_of(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return std::nullopt;
}

std::string rank_of(const Record& record) {
  const auto* number = std::get_if<std::int64_t>(record.find("rank"));
  return number != nullptr ? fmt::to_string(*number) : std::string();
}

using Key = SampleSeries::Key;

/// A single value as what BatchSeries takes.
Window window_of(double value) {
  Window one;
  if (!std::isfinite(value)) return one;
  one.count = 1;
  one.aggregates = {{"value", value}, {"sum", value}, {"min", value}, {"max", value}};
  return one;
}

}  // namespace

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

namespace {

/// What cannot be the key of a label is made one, as a name is: two of them stay two.
std::vector<std::string> keys_of(const Record& record, bool ranked) {
  std::vector<std::string> keys;
  if (ranked) keys.emplace_back("rank");
  if (!record.meaning) return keys;
  for (const auto& label : record.meaning->labels) {
    auto key = instrument_name(label.first);
    while (std::ranges::find(keys, key) != keys.end()) key += '_';
    keys.push_back(std::move(key));
  }
  return keys;
}

/// The values of the keys, in the order of the instrument; nothing if the names are others.
std::optional<std::vector<std::string>> values_for(const Spec& spec, const Record& record,
                                                   const std::string& rank) {
  std::vector<std::string> values;
  if (!rank.empty()) values.push_back(rank);
  if (record.meaning) {
    for (const auto& label : record.meaning->labels) values.push_back(label.second);
  }
  // The first record of a name fixes its labels; Prometheus and OpenTelemetry have one set of them
  // for each metric.
  return keys_of(record, !rank.empty()) == spec.label_keys ? std::optional(values) : std::nullopt;
}

Spec spec_of(const Record& record, bool ranked) {
  Spec spec{.name = instrument_name(record.name), .scope = record.scope};
  spec.views = {View{.aggregations = {}, .window = {}}};
  spec.label_keys = keys_of(record, ranked);
  if (!record.meaning) return spec;
  spec.unit = record.meaning->unit;
  spec.help = record.meaning->help;
  return spec;
}

Spec with_help(Spec spec, std::string_view help) {
  if (spec.help.empty()) spec.help = help;
  return spec;
}

/// Of a worker, whose samples are so many that the last value says little.
bool is_summed_up(const Key& key) {
  return !key.rank.empty() && !key.counts;
}

}  // namespace

std::shared_ptr<BatchSeries> SampleSeries::make_batches(Held& held, Kind kind, Spec spec) {
  auto name = spec.name;
  auto made = registry_.series(
      kind, "batches", std::move(spec), held.values,
      []() -> std::shared_ptr<Series> { return std::make_shared<BatchSeries>(); },
      std::source_location::current());
  if (!made) return nullptr;
  held.made.push_back(std::move(name));
  return std::static_pointer_cast<BatchSeries>(*made);
}

void SampleSeries::make(Held& held, const Key& key, const Record& record) {
  const auto& spec = names_.at({key.scope, key.name});
  const auto values = values_for(spec, record, key.rank);
  if (!values) {
    held.refusal = "its labels have other names than before";
    return;
  }
  held.values = *values;
  held.refusal = "the name is that of another kind of metric";
  if (record.window && record.window->sketch) {
    held.histogram = make_batches(held, Kind::Histogram, with_help(spec, "Reported by workers."));
    return;
  }
  try {
    if (key.counts) {
      held.counter.emplace(with_help(spec, "Counted by workers."), registry_);
      if (!values->empty()) held.counter = held.counter->with(*values);
    } else {
      held.gauge.emplace(with_help(spec, "The last value that was reported."), registry_);
      if (!values->empty()) held.gauge = held.gauge->with(*values);
    }
  } catch (const std::invalid_argument&) {  // it is the name of another instrument
    return;
  }
  held.made.push_back(spec.name);
  if (!is_summed_up(key)) return;
  auto samples = with_help(spec, "All values that were reported.");
  samples.name = instrument_name(key.name + ".samples");
  held.samples = make_batches(held, Kind::Stat, std::move(samples));
}

/// Null: one name more than there may be.
SampleSeries::Held* SampleSeries::find(Key key, const Record& record) {
  const auto found = held_.find(key);
  if (found != held_.end()) return &found->second;
  std::pair name(key.scope, key.name);
  if (!names_.contains(name)) {
    // Scripts choose the names, and may put a step into one: memory must not grow with that.
    if (names_.size() >= kMostNames) return nullptr;
    names_.emplace(std::move(name), spec_of(record, !key.rank.empty()));
  }
  // A refused name is kept as well, so that its further records cost a look-up only.
  Held made;
  make(made, key, record);
  return &held_.emplace(std::move(key), std::move(made)).first->second;
}

/// Why it is not taken; empty if it is.
std::string_view SampleSeries::take(const Record& record) {
  const auto number = number_of(record.value);
  if (!number) return "it is not a number";
  const auto* const total = record.find("total");
  Key key{record.scope, record.name, rank_of(record), total != nullptr && *total == Value(true)};
  if (record.meaning) key.labels = record.meaning->labels;
  const std::lock_guard lock(mutex_);
  auto* const held = find(std::move(key), record);
  if (held == nullptr) return "there are too many names";
  const Window* const batch = record.window.get();
  if (held->histogram && batch != nullptr && batch->sketch) {
    held->histogram->add(*batch);
    return {};
  }
  if (!held->gauge && !held->counter) return held->refusal;
  if (held->gauge) held->gauge->set(*number);
  // A worker that reports faster than it sends tells of several values at once, and a batch has
  // what they come to.
  if (held->samples) held->samples->add(batch != nullptr ? *batch : window_of(*number));
  if (!held->counter) return {};
  // Workers send totals, and the instrument takes rises.
  if (!held->counter->add(*number - held->total)) return "a total cannot fall";
  held->total = *number;
  return {};
}

void SampleSeries::consume(const Record& record) {
  if (record.kind != Record::Kind::Sample) return;
  const auto why = take(record);
  if (!why.empty()) refused_.fetch_add(1, std::memory_order_relaxed);
  if (!why.empty() && told_.refused) told_.refused(record, why);
  if (why.empty() && told_.taken) told_.taken();
}

void SampleSeries::end_if(const std::function<bool(const Key& key)>& fits) {
  const std::lock_guard lock(mutex_);
  std::erase_if(held_, [&](const auto& one) {
    const auto& [key, held] = one;
    if (!fits(key)) return false;
    // With the worker, or its last values would be told for as long as the job runs.
    for (const auto& name : held.made) registry_.end(key.scope, name, held.values);
    return true;
  });
}

}  // namespace elastrun::telemetry
