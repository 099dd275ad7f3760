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
      held.gauge.emplace(std::move(spec), registry_);
      if (ranked) held.gauge = held.gauge->with({key.rank});
    }
  } catch (const std::invalid_argument&) {  // it is the name of another instrument
    return {};
  }
  return held;
}

bool SampleSeries::take(const Record& record, double number) {
  const auto* const total = record.find("total");
  Key key{record.scope, record.name, rank_of(record), total != nullptr && *total == Value(true)};
  auto found = held_.find(key);
  if (found == held_.end()) {
    if (held_.size() >= kMostNames) return false;
    auto made = make(key);
    found = held_.emplace(std::move(key), std::move(made)).first;
  }
  auto& held = found->second;
  if (held.gauge) held.gauge->set(number);
  if (!held.counter) return held.gauge.has_value();
  if (!held.counter->add(number - held.total)) return false;
  held.total = number;
  return true;
}

void SampleSeries::consume(const Record& record) {
  if (record.kind != Record::Kind::Sample) return;
  const auto number = number_of(record.value);
  if (!number || !take(record, *number)) {
    refused_ += 1;
    return;
  }
  if (told_) told_();
}

}  // namespace elastrun::telemetry
