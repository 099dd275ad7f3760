// SPDX-License-Identifier: Apache-2.0
#include "telemetry/points.hpp"

#include "core/text.hpp"
#include "telemetry/value.hpp"

#include <algorithm>
#include <utility>
#include <variant>

namespace elastrun::telemetry {
namespace {

std::string key_of(const Point& point) {
  // With a byte between them that no name has: "a" "bc" and "ab" "c" are two.
  std::string key = point.spec->scope + '\0' + point.spec->name;
  for (const auto& [name, value] : point.labels) {
    key += '\0' + name + '\0' + python_json(to_json(value));
  }
  return key;
}

double total_of(const Value& value) {
  const auto* const whole = std::get_if<std::int64_t>(&value);
  if (whole != nullptr) return static_cast<double>(*whole);
  const auto* const number = std::get_if<double>(&value);
  return number == nullptr ? 0 : *number;
}

bool has_number(const Point& point) {
  if (point.no_data || point.kind == Kind::Stat || point.kind == Kind::Histogram) return false;
  return std::holds_alternative<std::int64_t>(point.value) ||
         std::holds_alternative<double>(point.value);
}

/// As the samples of workers have them, so that both are curves of one rank.
Attribute attribute_of(const Attribute& label) {
  const bool is_rank = label.first == "rank" || label.first == "local_rank";
  const auto* const text = std::get_if<std::string>(&label.second);
  const auto number = is_rank && text != nullptr ? parse_int(*text) : std::nullopt;
  return number ? Attribute(label.first, *number) : label;
}

}  // namespace

std::vector<Point> PointDeltas::since_last(std::vector<Point> points) {
  std::map<std::string, double> now;
  std::erase_if(points, [&](Point& point) {
    if (point.kind != Kind::Counter && point.kind != Kind::UpDown) return false;
    const auto key = key_of(point);
    const double total = total_of(point.value);
    now.emplace(key, total);
    const auto before = last_.find(key);
    // The first total may hold the past of another run, so it is not a rise.
    const double rise = before == last_.end() ? 0 : total - before->second;
    // A counter that falls has begun again from zero, say with a driver that was loaded again: by
    // how much it has risen is not known.
    if (rise == 0 || (rise < 0 && point.kind == Kind::Counter)) return true;
    const bool whole = std::holds_alternative<std::int64_t>(point.value);
    point.value = whole ? Value(static_cast<std::int64_t>(rise)) : Value(rise);
    return false;
  });
  // Not merged: a series that has ended takes its total with it, and begins at nothing if it comes
  // again.
  last_ = std::move(now);
  return points;
}

std::vector<Record> records_of(const std::vector<Point>& points, const Stamp& at) {
  std::vector<Record> records;
  records.reserve(points.size());
  for (const auto& point : points) {
    if (!has_number(point)) continue;
    auto& record = records.emplace_back();
    record.kind = Record::Kind::Sample;
    record.stamp = at;
    record.scope = point.spec->scope;
    record.name = point.spec->name;
    record.value = point.value;
    for (const auto& label : point.labels) record.attributes.push_back(attribute_of(label));
    // Readers take differences of totals, and need not guess from the name.
    if (point.kind == Kind::Counter) record.attributes.emplace_back("total", true);
  }
  return records;
}

}  // namespace elastrun::telemetry
