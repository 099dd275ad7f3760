// SPDX-License-Identifier: Apache-2.0
#include "telemetry/point_deltas.hpp"

#include "telemetry/value.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::telemetry {
namespace {

std::string key_of(const Point& point) {
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
    if (rise == 0 || (rise < 0 && point.kind == Kind::Counter)) return true;
    const bool whole = std::holds_alternative<std::int64_t>(point.value);
    point.value = whole ? Value(static_cast<std::int64_t>(rise)) : Value(rise);
    return false;
  });
  last_ = std::move(now);
  return points;
}

}  // namespace elastrun::telemetry
