// SPDX-License-Identifier: Apache-2.0
#include "telemetry/family.hpp"

namespace elastrun::telemetry {
namespace {

Value as_whole(Value value) {
  const double* const number = std::get_if<double>(&value);
  return number == nullptr ? value : Value(static_cast<std::int64_t>(*number));
}

}  // namespace

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

Record window_record(const Spec& spec, const std::vector<std::string>& labels, const View& view,
                     const Summary<double>& summary, Window window, bool whole) {
  window.dropped += summary.not_finite;
  window.unit = spec.unit;
  for (const auto one : view.aggregations.list()) {
    Value value = window.no_data ? Value() : summary.get(one);
    if (one == Aggregation::Count) value = static_cast<std::int64_t>(window.count);
    if (whole && one != Aggregation::Stddev) value = as_whole(std::move(value));
    window.aggregates.emplace_back(std::string(to_text(one)), std::move(value));
  }
  if (summary.sketch) window.sketch = std::make_shared<const Sketch>(*summary.sketch);
  Record record;
  record.kind = Record::Kind::Window;
  record.scope = spec.scope;
  record.name = spec.name;
  record.attributes = attributes_of(spec, labels);
  record.window = std::make_shared<const Window>(std::move(window));
  return record;
}

}  // namespace elastrun::telemetry
