// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <span>
#include <string>
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

}  // namespace elastrun::exporter
