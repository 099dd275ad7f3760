// SPDX-License-Identifier: Apache-2.0

#include "export/otlp_sink.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid.hpp>
#include <charconv>
#include <cmath>
#include <deque>
#include <fmt/format.h>
#include <map>
#include <random>
#include <utility>

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

json::object buckets_of(const worker::Buckets& buckets) {
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

std::string number_of(const Record& record, std::string_view attribute) {
  const auto found = record.whole(attribute);
  return found ? fmt::to_string(*found) : std::string();
}

/// 16 digits, or nothing: workers say what they like, and a collector refuses the whole batch.
std::string given_id(const Record& record, std::string_view attribute) {
  auto id = record.text(attribute);
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
  auto others = record.attributes;
  // Those have a place of their own.
  std::erase_if(others, [](const Attribute& one) {
    return one.first == "duration_ns" || one.first == "span.id" || one.first == "span.parent" ||
           one.first == "span.phase";
  });
  span["attributes"] = attributes_of(others);
  if (const auto error = record.text("span.error"); !error.empty()) {
    span["status"] = json::object{{"code", 2}, {"message", text(error)}};
  }
  return span;
}

json::object log_of(const Record& record, const std::string& trace) {
  json::object log;
  const Value* const message = record.find("message");
  auto attributes = record.attributes;
  std::erase_if(attributes, [](const Attribute& one) { return one.first == "message"; });
  log["timeUnixNano"] = time_of(record.stamp.wall);
  const auto late = record.whole("observed");
  log["observedTimeUnixNano"] = late ? whole(*late) : time_of(record.stamp.wall);
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

std::string body(const char* outer, const char* inner, const char* what,
                 std::map<std::string, json::array> by_scope, const OtlpOptions& options) {
  json::array scopes;
  for (auto& [scope, members] : by_scope) {
    scopes.push_back(json::object{{"scope", scope_of(scope, options)}, {what, std::move(members)}});
  }
  return body(outer, inner, std::move(scopes), options);
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (; !text.empty(); text.remove_prefix(1)) {
    unsigned char byte = 0;
    const auto digits = text.substr(1, 2);
    const auto* const end = digits.data() + 2;
    const bool coded = text.front() == '%' && digits.size() == 2 &&
                       std::from_chars(digits.data(), end, byte, 16).ptr == end;
    out += coded ? static_cast<char>(byte) : text.front();
    if (coded) text.remove_prefix(2);
  }
  return out;
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

/// What a record takes in memory, roughly.
std::size_t size_of(const Record& record) {
  std::size_t size = 256 + record.name.size() + record.scope.size();
  for (const auto& [key, value] : record.attributes) {
    const auto* text = std::get_if<std::string>(&value);
    size += 64 + key.size() + (text != nullptr ? text->size() : 0);
  }
  return size;
}

bool may_be_sent_again(int status) {
  // As OTLP/HTTP says; the same request would be refused again with any other status.
  return status == 429 || status == 502 || status == 503 || status == 504;
}

/// Many agents lose their collector at the same moment; they should not all come back at one.
Duration with_jitter(Duration pause) {
  static std::minstd_rand random(std::random_device{}());
  return pause / 2 +
         Duration(std::uniform_int_distribution<Duration::rep>(0, (pause / 2).count())(random));
}

/// "partialSuccess": how many the collector has rejected although it has answered with 200.
std::uint64_t rejected(const std::string& body, std::string& why) {
  const auto value = parse_json(body);
  const auto* partial = value ? find_member(*value, "partialSuccess") : nullptr;
  if (partial == nullptr) return 0;
  why = member_text_or(*partial, "errorMessage", "rejected in part");
  for (const char* key : {"rejectedLogRecords", "rejectedDataPoints", "rejectedSpans"}) {
    // protobuf's JSON has 64 bits as a text; a number is taken, too.
    const auto text = member_text_or(*partial, key, "");
    const auto count = text.empty() ? member_int_or(*partial, key, 0) : parse_int(text).value_or(0);
    if (count > 0) return static_cast<std::uint64_t>(count);
  }
  return 0;
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

std::string otlp_logs(std::span<const Record> records, const OtlpOptions& options) {
  std::map<std::string, json::array> all;
  const auto trace = trace_id(options);
  for (const auto& record : records) {
    if (record.kind == Record::Kind::Event) all[record.scope].push_back(log_of(record, trace));
  }
  return body("resourceLogs", "scopeLogs", "logRecords", std::move(all), options);
}

std::string otlp_traces(std::span<const Record> records, const OtlpOptions& options) {
  std::map<std::string, json::array> all;
  const SpanIds ids(options);
  const auto trace = trace_id(options);
  for (const auto& record : records) {
    const auto time = record.whole("duration_ns");
    // A worker says the length: below zero, the span would end before it begins.
    if (record.kind != Record::Kind::SpanEnd || !time || *time < 0) continue;
    all[record.scope].push_back(span_of(record, *time, ids, trace));
  }
  return body("resourceSpans", "scopeSpans", "spans", std::move(all), options);
}

Result<OtlpTarget> parse_otlp_url(std::string_view url) {
  const auto wrong = [url](std::string_view why) {
    return fail(Code::Usage, fmt::format("'{}' is not the URL of a collector: {}; expected "
                                         "http://HOST[:PORT][/PATH]",
                                         url, why));
  };
  OtlpTarget target;
  target.tls = url.starts_with("https://");
  if (!target.tls && !url.starts_with("http://"))
    return wrong("it begins with http:// or https://");
  const auto rest = url.substr(target.tls ? 8 : 7);
  const auto slash = rest.find('/');
  const auto authority = rest.substr(0, slash);
  if (authority.empty()) return wrong("it names no host");
  if (authority.find('@') != authority.npos) {
    // Command lines are visible to all users of the machine (ps(1)).
    return wrong("a password does not belong there (see OTEL_EXPORTER_OTLP_HEADERS)");
  }
  const auto path = slash == rest.npos ? std::string_view() : rest.substr(slash);
  if (path.find_first_of("?# ") != path.npos || has_control(url)) {
    return wrong("its path has a character that cannot be in one");
  }
  const auto endpoint = net::parse_endpoint(authority, 4318);
  if (!endpoint) return wrong(endpoint.error().text);
  if (endpoint->port == 0) return wrong("port 0");
  target.endpoint = *endpoint;
  target.path = path;
  // The signal's path comes behind ("/v1/traces"), and "//v1" is another path to many servers.
  while (target.path.ends_with('/')) target.path.pop_back();
  return target;
}

std::vector<std::pair<std::string, std::string>> parse_otlp_headers(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> headers;
  // As W3C's Baggage writes them, which is what OpenTelemetry has for this variable: values are
  // percent-encoded.
  for (const auto& pair : split(text, ',')) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos) continue;
    const std::string name(trim(std::string_view(pair).substr(0, equals)));
    auto value = percent_decoded(trim(std::string_view(pair).substr(equals + 1)));
    // A line break in a value would begin another header.
    if (name.empty() || has_control(value) || name.find_first_of(" \t:") != name.npos) continue;
    headers.emplace_back(name, std::move(value));
  }
  return headers;
}

namespace {

class OtlpSink final : public MetricsSink {
 public:
  OtlpSink(boost::asio::io_context& loop, Clock& clock, std::string name, OtlpSettings settings)
      : MetricsSink(std::move(name)),
        loop_(loop),
        clock_(clock),
        settings_(std::move(settings)),
        kept_(clock),
        alarm_(clock.make_alarm()) {}
  void consume(const Record& record) override {
    const bool span = record.kind == Record::Kind::SpanEnd;
    if (record.kind != Record::Kind::Event && !span) return;
    auto& signal = signals_[span ? 2 : 1];
    const bool first = signal.waiting.empty();
    signal.bytes += size_of(record);
    signal.waiting.push_back(record);
    // The oldest go: what happened just now says more about what is wrong.
    for (; signal.bytes > kMost; ++lost_) signal.take_oldest();
    if (!first) return;
    // Events come in bursts: they wait a moment, to go out as one batch.
    if (!finished_) signal.pause(clock_.now(), kGather);
    if (!call_) send_later();
  }
  void pull(const telemetry::Snapshot& snapshot) override {
    // Replaces a page that was not taken: its totals are in this one.
    signals_[0].page = snapshot.points.empty() ? "" : otlp_metrics(snapshot, settings_.options);
    send();
  }
  void finish(Done done) override {
    finished_ = std::move(done);
    // No pause any more: the agent waits two seconds for all sinks together.
    alarm_->disarm();
    for (auto& signal : signals_) signal.not_before = {};
    turn_ = 0;  // the last totals first
    send();
  }
  bool pulls() const override { return true; }

 private:
  static constexpr std::size_t kMost = 4 << 20;  // bytes of events that wait, roughly
  static constexpr std::size_t kBatch = 512;     // records of a request
  static constexpr Duration kLimit = std::chrono::seconds(10);  // of a request
  static constexpr Duration kGather = std::chrono::seconds(1);  // records for a request
  static constexpr Duration kFirstPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::minutes(1);
  static constexpr Duration kLongestRetryAfter = std::chrono::minutes(5);

  /// Metrics, events or spans: what is on its way, and when it may be sent.
  struct Signal {
    const char* path;
    /// Null: of metrics, of which the newest page is all there is to send.
    std::string (*encode)(std::span<const Record>, const OtlpOptions&) = nullptr;
    TimePoint not_before{};
    Duration next_pause = kFirstPause;
    bool said = false;  // that it is not taken
    std::deque<Record> waiting{};
    std::size_t bytes = 0;
    std::string page{};     // not sent yet
    std::string body{};     // being sent, or sent again
    std::size_t count = 0;  // of the records in it; a page is one
    std::size_t size() const { return count + waiting.size() + (page.empty() ? 0 : 1); }
    void pause(TimePoint now, Duration time) { not_before = std::max(not_before, now + time); }
    void clear() {
      body.clear();
      count = 0;
    }
    Record take_oldest() {
      auto record = std::move(waiting.front());
      waiting.pop_front();
      bytes -= size_of(record);
      return record;
    }
    const std::string& next_body(const OtlpOptions& options) {
      if (encode == nullptr) {
        // Kept while it is under way, to be sent again if nothing newer has come by then.
        body = std::exchange(page, {});
        count = 1;
      } else if (count == 0) {  // a batch that was not taken goes out again before anything newer
        std::vector<Record> batch;
        while (batch.size() < kBatch && !waiting.empty()) batch.push_back(take_oldest());
        body = encode(batch, options);
        count = batch.size();
      }
      return body;
    }
  };
  std::uint64_t waiting() const override {
    std::uint64_t open = 0;
    for (const auto& signal : signals_) open += signal.size();
    return open;
  }
  void send() {
    // One request at a time: a collector that is slow must not be asked more often for it.
    if (call_) return;
    const auto now = clock_.now();
    // Each signal has its own pace: a collector that answers 503 for metrics alone once got no
    // event at all. And its turn: one that takes longer for metrics than the pause between two
    // collections would get nothing else.
    bool more = false;
    for (std::size_t i = 0; i < signals_.size(); ++i) {
      const auto number = (turn_ + i) % signals_.size();
      auto& signal = signals_[number];
      if (signal.size() == 0) continue;
      more = true;
      if (now < signal.not_before) continue;
      turn_ = number + 1;
      return post(signal);
    }
    under_way_ = nullptr;
    if (more) return send_later();
    // Last: what it calls may destroy this sink.
    if (const auto finished = std::exchange(finished_, {})) finished();
  }
  void send_later() {
    auto next = TimePoint::max();
    for (const auto& signal : signals_) {
      if (signal.size() > 0) next = std::min(next, signal.not_before);
    }
    alarm_->arm(next, [this] { send(); });
  }
  void post(Signal& signal) {
    under_way_ = &signal;
    net::HttpCall::Settings settings{settings_.target.endpoint, settings_.tls, kLimit};
    // One connection for all requests: a handshake of TLS for each would cost more than what is
    // sent.
    settings.kept = &kept_;
    net::HttpRequest request{"POST", settings_.target.path + signal.path,
                             signal.next_body(settings_.options), settings_.headers};
    call_ = net::fetch(loop_, clock_, std::move(settings), std::move(request),
                       [this](const Result<net::HttpResponse>& response) { answered(response); });
  }
  void answered(const Result<net::HttpResponse>& response) {
    // It is this call that runs now, so it must outlive this function.
    answered_call_ = std::move(call_);
    if (!response) return later(response.error().text, std::nullopt);
    const int status = response->status;
    if (status >= 200 && status < 300) return taken(response->body);
    const auto why = fmt::format(
        "{} answers with status {}",
        net::format_endpoint(settings_.target.endpoint.host, settings_.target.endpoint.port),
        status);
    if (!may_be_sent_again(status)) return refused(why);
    const auto seconds = parse_int(response->retry_after);
    if (!seconds || *seconds < 0) return later(why, std::nullopt);
    // Bounded, since a collector that asks for a day would end this sink.
    later(why, std::min<Duration>(std::chrono::seconds(std::min<std::int64_t>(*seconds, 1 << 20)),
                                  kLongestRetryAfter));
  }
  void taken(const std::string& body) {
    under_way_->next_pause = kFirstPause;
    std::string why;
    // The collector gives the number, so it is not believed beyond what was sent.
    const auto lost = std::min<std::uint64_t>(rejected(body, why), under_way_->count);
    delivered_ += under_way_->count - lost;
    lost_ += lost;
    if (lost > 0) {
      trouble(why);
    } else if (std::exchange(under_way_->said, false)) {
      log::info("metrics", "{}: takes what it is sent again", name());
    }
    under_way_->clear();
    send();
  }
  void refused(std::string why) {
    lost_ += under_way_->count;
    under_way_->clear();
    trouble(std::move(why));
    send();
  }
  /// At the end a retry would come too late. Metrics newer than those sent replace them.
  void later(std::string why, std::optional<Duration> asked) {
    trouble(std::move(why));
    auto& signal = *under_way_;
    if (finished_) {
      lost_ += signal.size();
      signal = {.path = signal.path, .encode = signal.encode, .said = true};
      return send();
    }
    if (signal.encode == nullptr) {
      // Totals: the newest page replaces any that was not taken.
      if (signal.page.empty()) signal.page = signal.body;
      signal.clear();
    }
    signal.pause(clock_.now(), asked ? *asked : with_jitter(signal.next_pause));
    signal.next_pause = std::min(signal.next_pause * 2, kLongestPause);
    send();
  }
  void trouble(std::string why) {
    if (!std::exchange(under_way_->said, true)) {
      log::warning("metrics", "{}: {}; what it does not take in time is lost", name(), why);
    }
    if (trouble_.empty()) trouble_ = std::move(why);
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const OtlpSettings settings_;
  net::KeptConnection kept_;
  std::unique_ptr<Alarm> alarm_;
  std::array<Signal, 3> signals_{
      {{"/v1/metrics"}, {"/v1/logs", otlp_logs}, {"/v1/traces", otlp_traces}}};
  std::unique_ptr<net::HttpCall> call_, answered_call_;  // that may be on the stack still
  Signal* under_way_ = nullptr;
  std::size_t turn_ = 0;  // of the signal to be sent next
};

}  // namespace

std::shared_ptr<MetricsSink> make_otlp_sink(boost::asio::io_context& loop, Clock& clock,
                                            std::string name, OtlpSettings settings) {
  return std::make_shared<OtlpSink>(loop, clock, std::move(name), std::move(settings));
}

}  // namespace elastrun::exporter
