// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sample_series.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>

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

/// A single value as a batch; NaN and infinities are none.
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

std::string samples_name(const Key& key) {
  return instrument_name(key.name + ".samples");
}

constexpr std::string_view kOtherKind = "the name is that of another kind of metric";

/// Of a worker, whose samples are so many that the last value says little.
bool is_summed_up(const Key& key) {
  return !key.rank.empty() && !key.counts;
}

}  // namespace

void SampleSeries::make(Held& held, const Key& key, const Record& record) {
  const auto& spec = names_.at({key.scope, key.name});
  const auto values = values_for(spec, record, key.rank);
  if (!values) {
    held.refusal = "its labels have other names than before";
    return;
  }
  held.values = *values;
  const bool bucketed = record.window && record.window->sketch;
  held.kind = bucketed ? Kind::Histogram : key.counts ? Kind::Counter : Kind::Gauge;
  auto made = registry_.series(held.kind, false,
                               with_help(spec, bucketed     ? "Reported by workers."
                                               : key.counts ? "Counted by workers."
                                                            : "The last value that was reported."),
                               held.values);
  if (!made) {
    held.refusal = kOtherKind;
    return;
  }
  held.series = std::move(*made);
  if (bucketed || !is_summed_up(key)) return;
  auto samples = with_help(spec, "All values that were reported.");
  samples.name = samples_name(key);
  if (auto all = registry_.series(Kind::Stat, false, std::move(samples), held.values)) {
    held.samples = std::move(*all);
  }
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
  if (!held->series) return held->refusal;
  const Window* const batch = record.window.get();
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
  // A worker that reports faster than it sends tells of several values at once, and a batch has
  // what they come to.
  if (held->samples) held->samples->add(batch != nullptr ? *batch : window_of(*number));
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
    if (held.series) registry_.end(key.scope, instrument_name(key.name), held.values);
    if (held.samples) registry_.end(key.scope, samples_name(key), held.values);
    return true;
  });
}

}  // namespace elastrun::telemetry
