// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "net/endpoint.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::exporter {

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

}  // namespace elastrun::exporter
