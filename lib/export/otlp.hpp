// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <span>
#include <string>
#include <vector>

/// Bodies of OTLP/HTTP in JSON (opentelemetry-proto, "JSON Protobuf Encoding"), for POST to
/// /v1/metrics and /v1/logs with Content-Type application/json: lowerCamelCase keys, 64-bit
/// integers as text, enums as numbers, NaN and infinities as "NaN", "Infinity", "-Infinity".
namespace elastrun::exporter {

struct OtlpOptions {
  std::vector<telemetry::Attribute> resource{};  // service.name, process.pid, ...
  std::string version{};                         // of each scope
  telemetry::Cursor::Temporality temporality = telemetry::Cursor::Temporality::Cumulative;
};

/// Counters as sums, gauges as gauges (without a recorded value: flag 1), stats as histograms of
/// one bucket, histograms as exponential histograms with the sketch's own buckets. `temporality`
/// must be that of the cursor the snapshot was taken with.
std::string otlp_metrics(const telemetry::Snapshot& snapshot, const OtlpOptions& options = {});
/// Records of kind Event.
std::string otlp_logs(std::span<const telemetry::Record> records, const OtlpOptions& options = {});

}  // namespace elastrun::exporter
