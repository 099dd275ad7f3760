// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "export/metrics_sink.hpp"
#include "net/endpoint.hpp"
#include "net/http_call.hpp"
#include "telemetry/registry.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <deque>
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

/// Pushes the series of the agent, its events and its spans to a collector, as JSON over HTTP. One
/// request at a time. What a collector cannot take now (429, 502-504, no answer) is sent again:
/// metrics as they are then, events and spans in their batch; the pauses grow, or are as long as
/// its Retry-After says. Each of the three has its own: a collector may take one signal only. What
/// it refuses (other statuses) is lost, counted, and said once.
class OtlpSink final : public MetricsSink {
 public:
  static constexpr std::size_t kMost = 4 << 20;  // bytes of events that wait, roughly
  static constexpr std::size_t kBatch = 512;     // records of a request
  static constexpr Duration kLimit = std::chrono::seconds(10);  // of a request
  static constexpr Duration kGather = std::chrono::seconds(1);  // records for a request
  static constexpr Duration kFirstPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::minutes(1);
  static constexpr Duration kLongestRetryAfter = std::chrono::minutes(5);

  struct Settings {
    OtlpTarget target;
    std::shared_ptr<net::TlsClient> tls{};
    std::vector<std::pair<std::string, std::string>> headers{};
    OtlpOptions options{};
  };
  OtlpSink(boost::asio::io_context& loop, Clock& clock, std::string name, Settings settings);

  void consume(const telemetry::Record& record) override;
  bool pulls() const override { return true; }
  void pull(const telemetry::Snapshot& snapshot) override;
  void finish(Done done) override;

 private:
  /// Metrics, events or spans: what is on its way, and when it may be sent.
  struct Signal {
    const char* path;
    /// Null: of metrics, of which the newest page is all there is to send.
    std::string (*encode)(std::span<const telemetry::Record>, const OtlpOptions&) = nullptr;
    TimePoint not_before{};
    Duration next_pause = kFirstPause;
    bool said = false;  // that it is not taken
    std::deque<telemetry::Record> waiting{};
    std::size_t bytes = 0;
    std::vector<telemetry::Record> batch{};  // being sent, or sent again
    std::string page{}, sent{};              // not sent yet; being sent
    bool has_some() const { return !batch.empty() || !waiting.empty() || !page.empty(); }
    std::size_t size() const { return batch.size() + waiting.size() + (page.empty() ? 0 : 1); }
    void pause(TimePoint now, Duration time) { not_before = std::max(not_before, now + time); }
    /// Returns how many of the oldest have gone: what explains an outage comes last.
    std::size_t add(const telemetry::Record& record);
    std::string next_body(const OtlpOptions& options);
    std::size_t under_way() const { return encode == nullptr ? 1 : batch.size(); }
    void clear_sent();
    std::size_t drop();
  };
  std::uint64_t waiting() const override;
  void send();
  void send_later();
  void post(Signal& signal);
  void answered(const Result<net::HttpResponse>& response);
  void taken(const std::string& body);
  void refused(std::string why);
  void later(std::string why, std::optional<Duration> asked);
  void trouble(std::string why);

  boost::asio::io_context& loop_;
  Clock& clock_;
  const Settings settings_;
  net::KeptConnection kept_;
  std::unique_ptr<Alarm> alarm_;
  std::array<Signal, 3> signals_{
      {{"/v1/metrics"}, {"/v1/logs", otlp_logs}, {"/v1/traces", otlp_traces}}};
  std::unique_ptr<net::HttpCall> call_, answered_call_;  // that may be on the stack still
  Signal* under_way_ = nullptr;
  std::size_t turn_ = 0;  // of the signal to be sent next
};

}  // namespace elastrun::exporter
