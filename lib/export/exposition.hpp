// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "export/families.hpp"

/// Pages that Prometheus scrapes. Formats: "Exposition formats" of Prometheus' documentation (text
/// 0.0.4), and the specification of OpenMetrics 1.0.
namespace elastrun::exporter {

constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view kOpenMetricsType =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// State sets and infos as gauges; no exemplars, units and creation times, which it does not have.
std::string prometheus_text(const std::vector<Family>& families);
/// Ends with "# EOF".
std::string openmetrics_text(const std::vector<Family>& families);
/// Whether an Accept header asks for OpenMetrics; the older format is for everybody else.
bool wants_openmetrics(std::string_view accept);

}  // namespace elastrun::exporter
