// SPDX-License-Identifier: Apache-2.0
#include "plugin/record_view.hpp"

#include <string>

namespace elastrun::plugin {
namespace {

using telemetry::Aggregation;
using telemetry::Attribute;
using telemetry::Kind;
using telemetry::Record;
using telemetry::Value;

elastrun_value value_of(const Value& value) {
  elastrun_value out{};
  if (const auto* truth = std::get_if<bool>(&value)) {
    out.type = ELASTRUN_TRUTH;
    out.as.truth = *truth ? 1 : 0;
  } else if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    out.type = ELASTRUN_WHOLE;
    out.as.whole = *whole;
  } else if (const auto* number = std::get_if<double>(&value)) {
    out.type = ELASTRUN_NUMBER;
    out.as.number = *number;
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    out.type = ELASTRUN_TEXT;
    // Borrowed from the record: the view is good for one call, as elastrun_plugin.h says.
    out.as.text = text->c_str();
  }
  return out;
}

std::vector<elastrun_attribute> views_of(const std::vector<Attribute>& all) {
  std::vector<elastrun_attribute> views;
  views.reserve(all.size());
  for (const auto& [key, value] : all) views.push_back({key.c_str(), value_of(value)});
  return views;
}

std::int32_t kind_of(Record::Kind kind) {
  switch (kind) {
    case Record::Kind::Sample:
      return ELASTRUN_METRIC;
    case Record::Kind::Window:
      return ELASTRUN_WINDOW;
    case Record::Kind::SpanEnd:
      return ELASTRUN_SPAN;
    case Record::Kind::Event:
      break;
  }
  return ELASTRUN_EVENT;
}

std::int32_t kind_of(Kind kind) {
  switch (kind) {
    case Kind::Counter:
      return ELASTRUN_COUNTER;
    case Kind::UpDown:
      return ELASTRUN_UP_DOWN;
    case Kind::Gauge:
      return ELASTRUN_GAUGE;
    case Kind::Histogram:
      return ELASTRUN_HISTOGRAM;
    case Kind::Stat:
      break;
  }
  return ELASTRUN_STAT;
}

std::int64_t nanoseconds(TimePoint time) {
  return time.time_since_epoch().count();
}

std::int64_t nanoseconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

RecordView::RecordView(const Record& record) {
  view_.size = sizeof(view_);
  view_.kind = kind_of(record.kind);
  view_.severity = static_cast<std::int32_t>(record.severity);
  view_.time_ns = nanoseconds(record.stamp.wall);
  view_.mono_ns = nanoseconds(record.stamp.mono);
  view_.id = record.id;
  view_.scope = record.scope.c_str();
  view_.name = record.name.c_str();
  // Never null: a plug-in in C would have to check each text.
  view_.unit = "";
  view_.value = value_of(record.value);
  put_attributes(record.attributes);
  view_.start_ns = view_.end_ns = view_.mono_ns;
  const auto* const length = record.find("duration_ns");
  if (record.kind == Record::Kind::SpanEnd && length != nullptr &&
      std::holds_alternative<std::int64_t>(*length)) {
    // A span is recorded when it ends, so its beginning is computed.
    view_.start_ns -= std::get<std::int64_t>(*length);
  }
  if (record.kind != Record::Kind::Window || record.window == nullptr) return;
  const auto& window = *record.window;
  view_.start_ns = nanoseconds(window.start);
  view_.end_ns = nanoseconds(window.end);
  view_.count = window.count;
  view_.no_data = window.no_data ? 1 : 0;
  view_.unit = window.unit.c_str();
  put_aggregates(window.aggregates);
}

RecordView::RecordView(const telemetry::Point& point, const telemetry::Stamp& at) {
  view_.size = sizeof(view_);
  view_.kind = kind_of(point.kind);
  view_.severity = ELASTRUN_INFO;
  view_.time_ns = nanoseconds(at.wall);
  view_.mono_ns = nanoseconds(at.mono);
  view_.scope = point.spec->scope.c_str();
  view_.name = point.spec->name.c_str();
  view_.unit = point.spec->unit.c_str();
  view_.value = value_of(point.value);
  view_.no_data = point.no_data ? 1 : 0;
  put_attributes(point.labels);
  view_.start_ns = nanoseconds(point.start);
  view_.end_ns = view_.mono_ns;
  if (point.kind == Kind::Stat || point.kind == Kind::Histogram) put_summary(point);
}

void RecordView::put_attributes(const std::vector<Attribute>& all) {
  attributes_ = views_of(all);
  view_.attributes = attributes_.data();
  view_.attribute_count = attributes_.size();
}

void RecordView::put_aggregates(const std::vector<Attribute>& all) {
  aggregates_ = views_of(all);
  view_.aggregates = aggregates_.data();
  view_.aggregate_count = aggregates_.size();
}

void RecordView::put_summary(const telemetry::Point& point) {
  view_.count = point.summary.count;
  view_.no_data = point.summary.count == 0 ? 1 : 0;
  for (const auto one :
       {Aggregation::Count, Aggregation::Sum, Aggregation::Mean, Aggregation::Min, Aggregation::Max,
        Aggregation::Stddev, Aggregation::P50, Aggregation::P90, Aggregation::P99}) {
    auto value = point.summary.get(one);
    if (std::holds_alternative<std::monostate>(value)) continue;  // a quantile that is not kept
    summary_.emplace_back(std::string(to_text(one)), std::move(value));
  }
  // After the loop: the views point into summary_, which moves as it grows.
  put_aggregates(summary_);
}

}  // namespace elastrun::plugin
