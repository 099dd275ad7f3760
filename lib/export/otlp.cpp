// SPDX-License-Identifier: Apache-2.0
#include "export/otlp.hpp"

#include "core/json.hpp"
#include "core/utf8.hpp"

#include <cmath>
#include <fmt/format.h>
#include <map>

namespace elastrun::exporter {
namespace {

using telemetry::Attribute;
using telemetry::Kind;
using telemetry::Point;
using telemetry::Record;
using telemetry::Snapshot;
using telemetry::Value;

json::value real(double value) {
  // JSON has no such numbers; that of protobuf has these texts.
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json::value whole(auto value) {
  // The JSON of protobuf has integers of 64 bits as texts.
  return json::value(json::string(fmt::to_string(value)));
}

json::value text(std::string_view value) {
  return json::value(json::string(valid_utf8(value)));
}

struct ToAny {
  json::object operator()(std::monostate) const { return {}; }
  json::object operator()(bool flag) const { return {{"boolValue", flag}}; }
  json::object operator()(std::int64_t number) const { return {{"intValue", whole(number)}}; }
  json::object operator()(double number) const { return {{"doubleValue", real(number)}}; }
  json::object operator()(const std::string& value) const { return {{"stringValue", text(value)}}; }
};

json::array attributes_of(const std::vector<Attribute>& attributes) {
  json::array all;
  for (const auto& [key, value] : attributes) {
    all.push_back(json::object{{"key", text(key)}, {"value", std::visit(ToAny{}, value)}});
  }
  return all;
}

json::value time_of(WallTime when) {
  return whole(when.time_since_epoch().count());
}

json::object buckets_of(const telemetry::Buckets& buckets) {
  json::array counts;
  for (const auto count : buckets.counts) counts.push_back(whole(count));
  return {{"offset", buckets.offset}, {"bucketCounts", std::move(counts)}};
}

/// What all data points have.
json::object point_of(const Point& point, const Snapshot& snapshot) {
  const auto start = snapshot.at.wall - (snapshot.at.mono - point.start);
  json::object data;
  data["startTimeUnixNano"] = time_of(start);
  data["timeUnixNano"] = time_of(snapshot.at.wall);
  data["attributes"] = attributes_of(point.labels);
  return data;
}

void add_number(json::object& data, const Point& point) {
  if (point.no_data) {
    data["flags"] = 1;  // DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
  } else if (const auto* const number = std::get_if<std::int64_t>(&point.value)) {
    data["asInt"] = whole(*number);
  } else if (const auto* const other = std::get_if<double>(&point.value)) {
    data["asDouble"] = real(*other);
  }
}

void add_distribution(json::object& data, const Point& point) {
  const auto& summary = point.summary;
  const bool sketched = point.kind == Kind::Histogram;
  const auto sketch = summary.sketch.value_or(telemetry::Sketch());
  const std::uint64_t count = sketched ? sketch.count() : summary.count;
  data["count"] = whole(count);
  data["sum"] = real(summary.sum);
  if (summary.count != 0) {
    data["min"] = real(summary.min);
    data["max"] = real(summary.max);
  }
  if (sketched) {
    data["scale"] = sketch.scale();
    data["zeroCount"] = whole(sketch.zeros());
    data["positive"] = buckets_of(sketch.positive());
    data["negative"] = buckets_of(sketch.negative());
  } else {
    data["explicitBounds"] = json::array();
    data["bucketCounts"] = json::array{whole(count)};
  }
}

/// The metric without its points: the list of points is what is returned.
json::array& make_metric(json::object& metric, const Point& point, int temporality) {
  metric["name"] = text(point.spec->name);
  if (!point.spec->help.empty()) metric["description"] = text(point.spec->help);
  metric["unit"] = text(point.spec->unit);
  const char* const key = point.kind == Kind::Gauge       ? "gauge"
                          : point.kind == Kind::Stat      ? "histogram"
                          : point.kind == Kind::Histogram ? "exponentialHistogram"
                                                          : "sum";
  json::object& data = metric[key].emplace_object();
  if (point.kind != Kind::Gauge) data["aggregationTemporality"] = temporality;
  if (point.kind == Kind::Counter || point.kind == Kind::UpDown) {
    data["isMonotonic"] = point.kind == Kind::Counter;
  }
  return data["dataPoints"].emplace_array();
}

std::string body(const char* outer, const char* inner, json::array scopes,
                 const OtlpOptions& options) {
  json::object resource;
  resource["resource"] = json::object{{"attributes", attributes_of(options.resource)}};
  resource[inner] = std::move(scopes);
  return json::serialize(json::object{{outer, json::array{std::move(resource)}}});
}

json::object scope_of(const std::string& name, const OtlpOptions& options) {
  json::object scope{{"name", text(name)}};
  if (!options.version.empty()) scope["version"] = text(options.version);
  return scope;
}

json::object log_of(const Record& record) {
  json::object log;
  const Value* const message = record.find("message");
  std::vector<Attribute> attributes;
  for (const auto& attribute : record.attributes) {
    if (attribute.first != "message") attributes.push_back(attribute);
  }
  log["timeUnixNano"] = time_of(record.stamp.wall);
  const Value* const observed = record.find("observed");
  const auto* const late = observed == nullptr ? nullptr : std::get_if<std::int64_t>(observed);
  log["observedTimeUnixNano"] = late == nullptr ? time_of(record.stamp.wall) : whole(*late);
  log["severityNumber"] = static_cast<int>(record.severity);
  log["severityText"] = std::string(to_text(record.severity));
  log["eventName"] = text(record.name);
  if (message != nullptr) log["body"] = std::visit(ToAny{}, *message);
  if (record.id != 0)
    attributes.emplace_back("elastrun.event.id", fmt::format("{:016x}", record.id));
  log["attributes"] = attributes_of(attributes);
  return log;
}

}  // namespace

std::string otlp_metrics(const Snapshot& snapshot, const OtlpOptions& options) {
  const bool delta = options.temporality == telemetry::Cursor::Temporality::Delta;
  json::array scopes;
  std::string scope;
  const telemetry::Spec* last = nullptr;
  json::array* metrics = nullptr;
  json::array* points = nullptr;
  for (const auto& point : snapshot.points) {  // by scope and name
    if (metrics == nullptr || point.spec->scope != scope) {
      scope = point.spec->scope;
      json::object& added = scopes.emplace_back(json::object()).get_object();
      added["scope"] = scope_of(scope, options);
      metrics = &added["metrics"].emplace_array();
      last = nullptr;
    }
    if (point.spec.get() != last) {
      json::object& metric = metrics->emplace_back(json::object()).get_object();
      points = &make_metric(metric, point, delta ? 1 : 2);
      last = point.spec.get();
    }
    json::object data = point_of(point, snapshot);
    if (point.kind == Kind::Stat || point.kind == Kind::Histogram) {
      add_distribution(data, point);
    } else {
      add_number(data, point);
    }
    points->push_back(std::move(data));
  }
  return body("resourceMetrics", "scopeMetrics", std::move(scopes), options);
}

std::string otlp_logs(std::span<const Record> records, const OtlpOptions& options) {
  std::map<std::string, json::array> by_scope;
  for (const auto& record : records) {
    if (record.kind == Record::Kind::Event) by_scope[record.scope].push_back(log_of(record));
  }
  json::array scopes;
  for (auto& [scope, logs] : by_scope) {
    scopes.push_back(
        json::object{{"scope", scope_of(scope, options)}, {"logRecords", std::move(logs)}});
  }
  return body("resourceLogs", "scopeLogs", std::move(scopes), options);
}

}  // namespace elastrun::exporter
