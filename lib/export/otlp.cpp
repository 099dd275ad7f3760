// SPDX-License-Identifier: Apache-2.0
#include "export/otlp.hpp"

#include "core/json.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid.hpp>
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
  const auto start = snapshot.start_of(point);
  json::object data;
  data["startTimeUnixNano"] = time_of(start);
  // Of one that began just now the start may be a moment later, by another look at the clocks.
  data["timeUnixNano"] = time_of(std::max(snapshot.at.wall, start));
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
    // One bucket from minus to plus infinity: a histogram without bounds is how OTLP has a summary
    // of sum, count, least and most.
    data["explicitBounds"] = json::array();
    data["bucketCounts"] = json::array{whole(count)};
  }
}

/// The metric without its points: the list of points is what is returned.
json::array& make_metric(json::object& metric, const Point& point) {
  metric["name"] = text(point.spec->name);
  if (!point.spec->help.empty()) metric["description"] = text(point.spec->help);
  metric["unit"] = text(point.spec->unit);
  const char* const key = point.kind == Kind::Gauge       ? "gauge"
                          : point.kind == Kind::Stat      ? "histogram"
                          : point.kind == Kind::Histogram ? "exponentialHistogram"
                                                          : "sum";
  json::object& data = metric[key].emplace_object();
  // Cumulative; OTLP's Gauge has none.
  if (point.kind != Kind::Gauge) data["aggregationTemporality"] = 2;
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

/// So many bytes in hexadecimal digits, the same for the same text wherever that is asked.
std::string id_of(const std::string& text, std::size_t bytes) {
  const boost::uuids::name_generator_sha1 name(boost::uuids::ns::oid());
  std::string id;
  for (const auto byte : name(text)) id += fmt::format("{:02x}", byte);
  // Computed and not drawn: all agents of a job have one trace without a word between them, and
  // spans of a worker can name its span before that has ended and is sent.
  return id.substr(0, 2 * bytes);
}

std::string trace_id(const OtlpOptions& options) {
  return id_of("trace " + options.trace, 16);
}

std::string text_of(const Record& record, std::string_view attribute) {
  const auto* const found = std::get_if<std::string>(record.find(attribute));
  return found == nullptr ? std::string() : *found;
}

std::string number_of(const Record& record, std::string_view attribute) {
  const auto* const found = std::get_if<std::int64_t>(record.find(attribute));
  return found == nullptr ? std::string() : fmt::to_string(*found);
}

/// 16 digits, or nothing: workers say what they like, and a collector refuses the whole batch.
std::string given_id(const Record& record, std::string_view attribute) {
  auto id = text_of(record, attribute);
  const bool is_one = id.size() == 16 && id != "0000000000000000" &&
                      id.find_first_not_of("0123456789abcdef") == id.npos;
  return is_one ? id : std::string();
}

/// The ids of spans that came without one.
class SpanIds {
 public:
  explicit SpanIds(const OtlpOptions& options) {
    for (const auto& [key, value] : options.resource) {
      const auto* const text = std::get_if<std::string>(&value);
      if (key == "service.instance.id" && text != nullptr) agent_ = *text;
    }
  }
  std::string own(const Record& record) const {
    if (auto given = given_id(record, "span.id"); !given.empty()) return given;
    if (!telemetry::is_own_scope(record.scope)) return fresh(record);
    if (record.name == "job") return job();
    return record.name == "worker" ? worker(record) : fresh(record);
  }
  std::string parent(const Record& record) const {
    if (auto given = given_id(record, "span.parent"); !given.empty()) return given;
    if (!telemetry::is_own_scope(record.scope)) return worker(record);
    return record.name == "job" ? std::string() : job();
  }

 private:
  std::string job() const { return id_of(agent_ + " job", 8); }
  std::string worker(const Record& record) const {
    return id_of(
        agent_ + " worker " + number_of(record, "rank") + " " + number_of(record, "attempt"), 8);
  }
  std::string fresh(const Record& record) const {
    return id_of(
        fmt::format("{} {} {} {}", agent_, record.name,
                    record.stamp.wall.time_since_epoch().count(), number_of(record, "rank")),
        8);
  }
  std::string agent_;
};

/// Without those that have a place of their own.
json::array attributes_of_span(const Record& record) {
  std::vector<Attribute> rest;
  for (const auto& attribute : record.attributes) {
    const bool placed = attribute.first == "duration_ns" || attribute.first == "span.id" ||
                        attribute.first == "span.parent" || attribute.first == "span.phase";
    if (!placed) rest.push_back(attribute);
  }
  return attributes_of(rest);
}

json::object span_of(const Record& record, std::int64_t length, const SpanIds& ids,
                     const std::string& trace) {
  json::object span{{"traceId", trace}, {"spanId", ids.own(record)}};
  if (const auto parent = ids.parent(record); !parent.empty()) span["parentSpanId"] = parent;
  span["name"] = text(record.name);
  span["kind"] = 1;  // SPAN_KIND_INTERNAL
  // From its end, at which the record was made: the wall clock may have been set since its
  // beginning, and a span must not begin after it ends.
  span["startTimeUnixNano"] = time_of(record.stamp.wall - Duration(length));
  span["endTimeUnixNano"] = time_of(record.stamp.wall);
  span["attributes"] = attributes_of_span(record);
  if (const auto error = text_of(record, "span.error"); !error.empty()) {
    span["status"] = json::object{{"code", 2}, {"message", text(error)}};
  }
  return span;
}

json::object log_of(const Record& record, const std::string& trace) {
  json::object log;
  const Value* const message = record.find("message");
  std::vector<Attribute> attributes;
  for (const auto& attribute : record.attributes) {
    if (attribute.first != "message") attributes.push_back(attribute);
  }
  log["timeUnixNano"] = time_of(record.stamp.wall);
  const auto* const late = std::get_if<std::int64_t>(record.find("observed"));
  log["observedTimeUnixNano"] = late == nullptr ? time_of(record.stamp.wall) : whole(*late);
  log["severityNumber"] = static_cast<int>(record.severity);
  log["severityText"] = std::string(to_text(record.severity));
  log["eventName"] = text(record.name);
  if (message != nullptr) log["body"] = std::visit(ToAny{}, *message);
  if (record.id != 0)
    attributes.emplace_back("elastrun.event.id", fmt::format("{:016x}", record.id));
  if (const auto span = given_id(record, "span.id"); !span.empty()) {
    log["traceId"] = trace;
    log["spanId"] = span;
  }
  log["attributes"] = attributes_of(attributes);
  return log;
}

}  // namespace

std::string otlp_metrics(const Snapshot& snapshot, const OtlpOptions& options) {
  json::array scopes;
  std::string scope;
  const telemetry::Spec* last = nullptr;
  json::array* metrics = nullptr;
  json::array* points = nullptr;
  for (const auto& point : snapshot.points) {  // by scope and name
    // A collector takes several entries for one scope, but each costs its name and version again.
    if (metrics == nullptr || point.spec->scope != scope) {
      scope = point.spec->scope;
      json::object& added = scopes.emplace_back(json::object()).get_object();
      added["scope"] = scope_of(scope, options);
      metrics = &added["metrics"].emplace_array();
      last = nullptr;
    }
    if (point.spec.get() != last) {
      json::object& metric = metrics->emplace_back(json::object()).get_object();
      points = &make_metric(metric, point);
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

namespace {

json::array by_scope(std::map<std::string, json::array> all, const char* what,
                     const OtlpOptions& options) {
  json::array scopes;
  for (auto& [scope, members] : all) {
    scopes.push_back(json::object{{"scope", scope_of(scope, options)}, {what, std::move(members)}});
  }
  return scopes;
}

}  // namespace

std::string otlp_logs(std::span<const Record> records, const OtlpOptions& options) {
  std::map<std::string, json::array> all;
  const auto trace = trace_id(options);
  for (const auto& record : records) {
    if (record.kind == Record::Kind::Event) all[record.scope].push_back(log_of(record, trace));
  }
  return body("resourceLogs", "scopeLogs", by_scope(std::move(all), "logRecords", options),
              options);
}

std::string otlp_traces(std::span<const Record> records, const OtlpOptions& options) {
  std::map<std::string, json::array> all;
  const SpanIds ids(options);
  const auto trace = trace_id(options);
  for (const auto& record : records) {
    const auto* const time = std::get_if<std::int64_t>(record.find("duration_ns"));
    // A worker says the length: below zero, the span would end before it begins.
    if (record.kind != Record::Kind::SpanEnd || time == nullptr || *time < 0) continue;
    all[record.scope].push_back(span_of(record, *time, ids, trace));
  }
  return body("resourceSpans", "scopeSpans", by_scope(std::move(all), "spans", options), options);
}

}  // namespace elastrun::exporter
