// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "export/metrics_sink.hpp"
#include "files/blocking_calls.hpp"
#include "telemetry/registry.hpp"

#include <string>
#include <string_view>
#include <vector>

/// Pages that Prometheus scrapes, written from the points of a collection. Formats: "Exposition
/// formats" of Prometheus' documentation (text 0.0.4), and the specification of OpenMetrics 1.0.
namespace elastrun::exporter {

constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view kOpenMetricsType =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// OpenMetrics has units and creation times, and ends with "# EOF".
enum class PageForm { Prometheus, OpenMetrics };
/// What an Accept header asks for; the older format is for everybody else.
PageForm form_for(std::string_view accept);

struct PageOptions {
  /// Upper bounds of histograms. A value in the sketch bucket around a bound may count on either
  /// side: 1.09 % of the bound.
  std::vector<double> bounds{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                             5,     10,   30,    60,   120, 300,  600, 1800};
  std::vector<telemetry::Attribute> resource{};  // becomes target_info
  bool tells_refused = false;                    // elastrun_page_refused, if there are any
};

/// Families by name. If two series would write one sample, the agent's and the machine's (no scope,
/// or one of "elastrun") is there, whatever workers call theirs; otherwise the first one. The
/// others are refused, counted.
///
/// Stats become summaries of count and sum, histograms histograms. A gauge without data has no
/// sample, nor has a counter that is not finite.
std::string page_of(const telemetry::Snapshot& snapshot, PageForm form,
                    const PageOptions& options = {});

// Names, by OpenTelemetry's rules for Prometheus
// -----------------------------------------------

/// Letters, digits and single `_`; no digit first.
std::string prometheus_name(std::string_view name);
/// "s" -> "seconds", "By/s" -> "bytes_per_second", "{restart}" -> ""; "1" is a ratio for gauges.
std::string prometheus_unit(std::string_view ucum, bool is_gauge);

/// The page that Prometheus would scrape, as a file that is replaced at once: for the textfile
/// collector of node_exporter, or for people. Only the newest page waits. Borrows `calls`.
std::shared_ptr<MetricsSink> make_page_sink(files::BlockingCalls& calls, std::string name,
                                            std::string path, PageForm form, PageOptions options);
/// The page of an agent that has not recorded anything. May wait for the file system. Fails with
/// Io if there can be no such file.
Status put_empty_page(const std::string& path, PageForm form);

}  // namespace elastrun::exporter
