// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// What both of Prometheus' text formats are written from: metric families in OpenMetrics' terms.
namespace elastrun::exporter {

using Label = std::pair<std::string, std::string>;

/// One observation that stands for others, with what leads to its trace. One of more than 128
/// characters of labels is left out, as the format asks.
struct Exemplar {
  std::vector<Label> labels;
  double value = 0;
  std::optional<WallTime> when{};
};

struct Sample {
  struct Bucket {
    double bound = 0;         // the last one: infinity
    std::uint64_t count = 0;  // of the values up to the bound, so it never falls
    std::optional<Exemplar> exemplar{};
  };
  std::vector<Label> labels{};
  telemetry::Value value{};                            // not of histograms and summaries
  std::uint64_t count = 0;                             // of histograms and summaries
  double sum = 0;                                      // as well
  bool has_negative = false;                           // then OpenMetrics forbids the sum
  std::vector<Bucket> buckets{};                       // of histograms, rising
  std::vector<std::pair<double, double>> quantiles{};  // of summaries
  std::optional<WallTime> created{};
  std::optional<Exemplar> exemplar{};  // of counters
};

struct Family {
  enum class Type { Counter, Gauge, Histogram, Summary, Info, Unknown };
  std::string name;  // valid in both formats, with the unit, without _total
  Type type = Type::Unknown;
  std::string unit{};  // in words, and the end of the name: "seconds"
  std::string help{};
  std::vector<Sample> samples{};
};

struct FamilyOptions {
  /// Upper bounds of histograms. A value in the sketch bucket around a bound may count on either
  /// side: 1.09 % of the bound.
  std::vector<double> bounds{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                             5,     10,   30,    60,   120, 300,  600, 1800};
  bool scope_labels = true;                      // otel_scope_name
  std::vector<telemetry::Attribute> resource{};  // becomes target_info
  bool tells_refused = false;                    // elastrun_page_refused, if there are any
};
struct Families {
  std::vector<Family> all;  // by name
  /// Series that would have had the name of a sample of another family: "a.b" beside "a_b".
  std::size_t refused = 0;
};

/// Of two whose samples would have one name the agent's and the machine's (no scope, or one of
/// "elastrun") is there, whatever workers call theirs; otherwise the first one.
///
/// Stats become summaries of count and sum, histograms histograms. A gauge without data has no
/// sample. A counter that is not finite, too.
Families families_of(const telemetry::Snapshot& snapshot, const FamilyOptions& options = {});

// Names, by OpenTelemetry's rules for Prometheus
// -----------------------------------------------

/// Letters, digits and single `_`; no digit first.
std::string prometheus_name(std::string_view name);
/// "s" -> "seconds", "By/s" -> "bytes_per_second", "{restart}" -> ""; "1" is a ratio for gauges.
std::string prometheus_unit(std::string_view ucum, bool is_gauge);
/// Of keys that become one, the values are joined by `;`.
std::vector<Label> prometheus_labels(const std::vector<telemetry::Attribute>& attributes);

}  // namespace elastrun::exporter
