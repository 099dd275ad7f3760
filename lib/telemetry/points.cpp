// SPDX-License-Identifier: Apache-2.0
#include "telemetry/points.hpp"

#include "core/text.hpp"

#include <variant>

namespace elastrun::telemetry {
namespace {

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
