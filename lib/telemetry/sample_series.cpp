// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sample_series.hpp"

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
  const auto* rank = record.find("rank");
  const auto* number = rank != nullptr ? std::get_if<std::int64_t>(rank) : nullptr;
  return number != nullptr ? fmt::to_string(*number) : std::string();
}

}  // namespace

std::string instrument_name(std::string_view text) {
  constexpr std::size_t kLongest = 255;
  std::string name;
  for (const char c : text.substr(0, kLongest)) {
    const char tried[] = {'a', c};
    name += is_name({tried, 2}) ? c : '_';
  }
  if (!is_name(name)) name = ("m_" + name).substr(0, kLongest);
  return name;
}

SampleSeries::Held SampleSeries::make(const Key& key) const {
  const bool ranked = !key.rank.empty();
  Spec spec{.name = instrument_name(key.name), .scope = key.scope};
  if (ranked) spec.label_keys = {"rank"};
  spec.views = {View{.aggregations = {}, .window = {}}};
  Held held;
  try {
    if (key.counts) {
      spec.help = "Counted by workers.";
      held.counter.emplace(std::move(spec), registry_);
      if (ranked) held.counter = held.counter->with({key.rank});
    } else {
      spec.help = "The last value that was reported.";
      held.gauge.emplace(std::move(spec), registry_);
      if (ranked) held.gauge = held.gauge->with({key.rank});
    }
  } catch (const std::invalid_argument&) {  // it is the name of another instrument
    return {};
  }
  return held;
}

/// Null: one name more than there may be.
SampleSeries::Held* SampleSeries::find(Key key) {
  const auto found = held_.find(key);
  if (found != held_.end()) return &found->second;
  std::pair name(key.scope, key.name);
  if (!names_.contains(name)) {
    // Scripts choose the names, and may put a step into one: memory must not grow with that.
    if (names_.size() >= kMostNames) return nullptr;
    names_.insert(std::move(name));
  }
  // A refused name is kept as well, so that its further records cost a look-up only.
  auto made = make(key);
  return &held_.emplace(std::move(key), std::move(made)).first->second;
}

/// Why it is not taken; empty if it is.
std::string_view SampleSeries::take(const Record& record) {
  const auto number = number_of(record.value);
  if (!number) return "it is not a number";
  const auto* const total = record.find("total");
  const std::lock_guard lock(mutex_);
  auto* const held =
      find({record.scope, record.name, rank_of(record), total != nullptr && *total == Value(true)});
  if (held == nullptr) return "there are too many names";
  if (!held->gauge && !held->counter) return "the name is that of another kind of metric";
  if (held->gauge) held->gauge->set(*number);
  if (!held->counter) return {};
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
    if (held.gauge || held.counter) {
      const bool ranked = !key.rank.empty();
      registry_.end(key.scope, instrument_name(key.name),
                    ranked ? std::vector{key.rank} : std::vector<std::string>());
    }
    return true;
  });
}

}  // namespace elastrun::telemetry
