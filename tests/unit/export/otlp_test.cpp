// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"
#include "export/otlp_sink.hpp"
#include "sample_points.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;

namespace {

json::value parsed(const std::string& text) {
  auto value = parse_json(text);
  REQUIRE(value);
  return std::move(*value);
}

/// The metric of that name, in whichever scope.
json::object metric(const json::value& body, std::string_view name) {
  for (const auto& scope : body.at("resourceMetrics").at(0).at("scopeMetrics").as_array()) {
    for (const auto& one : scope.at("metrics").as_array()) {
      if (one.at("name").as_string() == name) return one.as_object();
    }
  }
  FAIL("no metric of that name");
  return {};
}

std::string text(const json::value& value) {
  return json::serialize(value);
}

}  // namespace

TEST_CASE("otlp: sums, gauges and both histograms, with integers as text") {
  SamplePoints points;
  const auto body = parsed(otlp_metrics(
      points.snapshot(), {.resource = {{"process.pid", std::int64_t{42}}}, .version = "1"}));
  const auto& first = body.at("resourceMetrics").at(0);
  CHECK(text(first.at("resource")) ==
        R"({"attributes":[{"key":"process.pid","value":{"intValue":"42"}}]})");
  CHECK(text(first.at("scopeMetrics").at(1).at("scope")) == R"({"name":"hw","version":"1"})");
  const auto restarts = metric(body, "elastrun.worker.restarts");
  CHECK(text(restarts.at("sum").at("dataPoints").at(1)) ==
        R"({"startTimeUnixNano":"1763690000000000000","timeUnixNano":"1763690001500000000",)"
        R"("attributes":[{"key":"role","value":{"stringValue":"trainer"}}],"asInt":"2"})");
  CHECK(text(restarts.at("sum").at("isMonotonic")) == "true");
  CHECK(text(restarts.at("sum").at("aggregationTemporality")) == "2");
  const auto loads = metric(body, "load.share").at("gauge").at("dataPoints").as_array();
  REQUIRE(loads.size() == 4);
  CHECK(text(loads[1].at("asDouble")) == R"("NaN")");
  CHECK(text(loads[2].at("asDouble")) == R"("Infinity")");
  CHECK(text(loads[3].at("flags")) == "1");
  CHECK(loads[3].as_object().if_contains("asDouble") == nullptr);
  const auto batch = metric(body, "batch.time").at("histogram").at("dataPoints").at(0);
  CHECK(text(batch.at("count")) == R"("3")");
  CHECK(text(batch.at("bucketCounts")) == R"(["3"])");
  const auto drift = metric(body, "clock.drift").at("exponentialHistogram").at("dataPoints").at(0);
  CHECK(text(drift.at("scale")) == "5");
  CHECK(text(drift.at("zeroCount")) == R"("1")");
  CHECK(text(drift.at("negative")) == R"({"offset":-1,"bucketCounts":["1"]})");
  CHECK(text(drift.at("positive")) == R"({"offset":50,"bucketCounts":["1"]})");
}

TEST_CASE("otlp: events are log records with their name, severity and both times") {
  telemetry::Record record;
  record.scope = "torch.monitor";
  record.name = "torch.monitor.Stat";
  record.stamp.wall = WallTime(Duration(1763690001000000000));
  record.severity = telemetry::Severity::Error;
  record.id = 0xab;
  record.attributes = {{"message", "m"}, {"a.sum", 10.0}, {"observed", std::int64_t{7}}};
  telemetry::Record sample;
  sample.kind = telemetry::Record::Kind::Sample;
  const std::vector records{record, sample};
  const auto body = parsed(otlp_logs(records));
  const auto& logs = body.at("resourceLogs").at(0).at("scopeLogs").at(0).at("logRecords");
  REQUIRE(logs.as_array().size() == 1);
  CHECK(text(logs.at(0)) ==
        R"({"timeUnixNano":"1763690001000000000","observedTimeUnixNano":"7","severityNumber":17,)"
        R"("severityText":"ERROR","eventName":"torch.monitor.Stat","body":{"stringValue":"m"},)"
        R"("attributes":[{"key":"a.sum","value":{"doubleValue":1E1}},)"
        R"({"key":"observed","value":{"intValue":"7"}},)"
        R"({"key":"elastrun.event.id","value":{"stringValue":"00000000000000ab"}}]})");
}

TEST_CASE("otlp: nothing is a body, too") {
  CHECK(otlp_metrics({}) ==
        R"({"resourceMetrics":[{"resource":{"attributes":[]},"scopeMetrics":[]}]})");
}

TEST_CASE("otlp: what a worker opens is below its worker, and that below the job, in one trace") {
  using telemetry::Record;
  const auto span = [](std::string scope, std::string name,
                       std::vector<telemetry::Attribute> attributes) {
    Record record;
    record.kind = Record::Kind::SpanEnd;
    record.scope = std::move(scope);
    record.name = std::move(name);
    record.stamp.wall = WallTime(Duration(1763690001000000000));
    record.attributes = std::move(attributes);
    record.attributes.emplace_back("duration_ns", std::int64_t{1'000'000'000});
    return record;
  };
  const std::int64_t rank = 3, attempt = 1;
  const std::vector records{
      span("elastrun.agent", "job", {}),
      span("elastrun.agent", "worker", {{"rank", rank}, {"attempt", attempt}}),
      span("worker", "epoch",
           {{"number", std::int64_t{7}},
            {"span.id", "0123456789abcdef"},
            {"span.error", "OSError"},
            {"rank", rank},
            {"attempt", attempt}}),
      span("worker", "step",
           {{"span.id", "00000000000000ff"}, {"span.parent", "0123456789abcdef"}}),
      span("worker", "odd", {{"span.id", "no id"}, {"span.parent", "0000000000000000"}})};
  const OtlpOptions options{.resource = {{"service.instance.id", "a/b/1"}}, .trace = "night"};
  const auto body = parsed(otlp_traces(records, options));
  const auto& scopes = body.at("resourceSpans").at(0).at("scopeSpans");
  const auto& ours = scopes.at(0).at("spans");
  const auto& theirs = scopes.at(1).at("spans");
  REQUIRE(ours.as_array().size() == 2);
  REQUIRE(theirs.as_array().size() == 3);
  CHECK(ours.at(0).as_object().if_contains("parentSpanId") == nullptr);
  CHECK(ours.at(1).at("parentSpanId") == ours.at(0).at("spanId"));
  CHECK(theirs.at(0).at("parentSpanId") == ours.at(1).at("spanId"));
  CHECK(theirs.at(1).at("parentSpanId") == "0123456789abcdef");
  CHECK(
      text(theirs.at(0)) ==
      R"({"traceId":)" + text(ours.at(0).at("traceId")) +
          R"(,"spanId":"0123456789abcdef","parentSpanId":)" + text(ours.at(1).at("spanId")) +
          R"(,"name":"epoch","kind":1,"startTimeUnixNano":"1763690000000000000",)"
          R"("endTimeUnixNano":"1763690001000000000","attributes":[{"key":"number","value":)"
          R"({"intValue":"7"}},{"key":"span.error","value":{"stringValue":"OSError"}},)"
          R"({"key":"rank","value":{"intValue":"3"}},{"key":"attempt","value":{"intValue":"1"}}],)"
          R"("status":{"code":2,"message":"OSError"}})");
  // Ids that no collector takes are ours.
  CHECK(theirs.at(2).at("spanId").as_string().size() == 16);
  CHECK(theirs.at(2).at("spanId") != "no id");
  CHECK(theirs.at(2).at("parentSpanId") != "0000000000000000");
  CHECK(ours.at(0).at("traceId").as_string().size() == 32);
  // Another agent of the job has the same trace, and other spans.
  const auto other = parsed(
      otlp_traces(records, {.resource = {{"service.instance.id", "a/c/1"}}, .trace = "night"}));
  const auto& job = other.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans").at(0);
  CHECK(job.at("traceId") == ours.at(0).at("traceId"));
  CHECK(job.at("spanId") != ours.at(0).at("spanId"));
  // An event in a span knows it.
  Record event;
  event.name = "e";
  event.attributes = {{"span.id", "0123456789abcdef"}};
  const auto logs = parsed(otlp_logs(std::vector{event}, options));
  const auto& log = logs.at("resourceLogs").at(0).at("scopeLogs").at(0).at("logRecords").at(0);
  CHECK(log.at("spanId") == "0123456789abcdef");
  CHECK(log.at("traceId") == ours.at(0).at("traceId"));
}

TEST_CASE("otlp target: URLs of collectors") {
  CHECK(*parse_otlp_url("http://collector") == OtlpTarget{{"collector", 4318}, false, ""});
  CHECK(*parse_otlp_url("https://c:443/otlp/v2/") == OtlpTarget{{"c", 443}, true, "/otlp/v2"});
  CHECK(*parse_otlp_url("http://[::1]:9/") == OtlpTarget{{"::1", 9}, false, ""});
}

TEST_CASE("otlp target: what is no such URL is refused with the reason") {
  for (const char* bad :
       {"", "http:/", "http://", "ftp://host", "host:4318", "http://host:0", "http://host:99999",
        "http://u:p@host", "http://h/a b", "http://h/?x=1", "http://h/\r\nX: 1", "http://h#x"}) {
    CAPTURE(bad);
    const auto target = parse_otlp_url(bad);
    REQUIRE(!target);
    CHECK(target.error().code == Code::Usage);
    CHECK(target.error().text.find("http://HOST") != std::string::npos);
  }
}

TEST_CASE("otlp target: headers of OTEL_EXPORTER_OTLP_HEADERS") {
  using Headers = std::vector<std::pair<std::string, std::string>>;
  CHECK(parse_otlp_headers("").empty());
  CHECK(parse_otlp_headers("api-key=a%20b%2Cc, x = y=z") ==
        Headers{{"api-key", "a b,c"}, {"x", "y=z"}});
  CHECK(parse_otlp_headers("none,=x,a b=c,a=%0d%0aEvil: 1,ok=%zz") == Headers{{"ok", "%zz"}});
}
