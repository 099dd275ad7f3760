// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "export/metrics_sink.hpp"
#include "net/endpoint.hpp"
#include "net/http_call.hpp"
#include "telemetry/registry.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Bodies of OTLP/HTTP in JSON (opentelemetry-proto, "JSON Protobuf Encoding"), for POST to
/// /v1/metrics, /v1/logs and /v1/traces with Content-Type application/json: lowerCamelCase keys,
/// 64-bit integers as text, enums as numbers, NaN and infinities as "NaN", "Infinity", "-Infinity".
namespace elastrun::exporter {

struct OtlpOptions {
  std::vector<telemetry::Attribute> resource{};  // service.name, process.pid, ...
  std::string version{};                         // of each scope
  std::string trace{};                           // what its id is made from: who has one, shares it
};

/// Counters as sums, gauges as gauges (without a recorded value: flag 1), stats as histograms of
/// one bucket, histograms as exponential histograms with the sketch's own buckets.
std::string otlp_metrics(const telemetry::Snapshot& snapshot, const OtlpOptions& options = {});
/// Records of kind SpanEnd with the attribute "duration_ns": spans of one trace. Their ids are the
/// attributes "span.id" and "span.parent", where a worker has given them. Else the agent's own are
/// below its "job", and what a worker has begun in no other span is below the agent's span of that
/// worker; "span.error" makes it one that has failed.
std::string otlp_traces(std::span<const telemetry::Record> records,
                        const OtlpOptions& options = {});
/// Records of kind Event; those of a worker's span know it.
std::string otlp_logs(std::span<const telemetry::Record> records, const OtlpOptions& options = {});

/// Where OTLP/HTTP goes: /v1/metrics and /v1/logs are added to the path.
struct OtlpTarget {
  net::Endpoint endpoint;
  bool tls = false;
  std::string path;  // "/otlp"; without a slash at its end
  bool operator==(const OtlpTarget&) const = default;
};
/// "http://collector:4318", "https://[::1]/otlp"; port 4318 unless one is given. Fails with
/// Usage.
Result<OtlpTarget> parse_otlp_url(std::string_view url);
/// "key=value,key2=value2" (OTEL_EXPORTER_OTLP_HEADERS), values percent-decoded; other items are
/// ignored.
std::vector<std::pair<std::string, std::string>> parse_otlp_headers(std::string_view text);

struct OtlpSettings {
  OtlpTarget target;
  std::shared_ptr<net::TlsClient> tls{};
  std::vector<std::pair<std::string, std::string>> headers{};
  OtlpOptions options{};
};
/// Pushes the series of the agent, its events and its spans to a collector, as JSON over HTTP. One
/// request at a time. What a collector cannot take now (429, 502-504, no answer) is sent again:
/// metrics as they are then, events and spans in their batch; the pauses grow, or are as long as
/// its Retry-After says. Each of the three has its own: a collector may take one signal only. What
/// it refuses (other statuses) is lost, counted, and said once.
std::shared_ptr<MetricsSink> make_otlp_sink(boost::asio::io_context& loop, Clock& clock,
                                            std::string name, OtlpSettings settings);

}  // namespace elastrun::exporter
