// SPDX-License-Identifier: Apache-2.0

#include "telemetry/windows.hpp"

#include <algorithm>
#include <array>

namespace elastrun::telemetry {
namespace {

// In the order of the enumeration, whose first seven are torch.monitor.Aggregation's, with its
// numbers.
constexpr std::array<std::string_view, 13> kNames = {"none", "value", "mean",   "count", "sum",
                                                     "max",  "min",   "stddev", "p50",   "p90",
                                                     "p95",  "p99",   "p999"};

}  // namespace

std::string_view to_text(Aggregation aggregation) {
  return kNames[static_cast<std::size_t>(aggregation)];
}

std::optional<Aggregation> aggregation_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Aggregation>(found - kNames.begin());
}

std::optional<double> quantile_of(Aggregation aggregation) {
  switch (aggregation) {
    case Aggregation::P50:
      return 0.5;
    case Aggregation::P90:
      return 0.9;
    case Aggregation::P95:
      return 0.95;
    case Aggregation::P99:
      return 0.99;
    case Aggregation::P999:
      return 0.999;
    default:
      return std::nullopt;
  }
}

bool Aggregations::need_sketch() const {
  // From P50 on all are quantiles: the order of the enumeration counts.
  return bits_ >> static_cast<unsigned>(Aggregation::P50) != 0;
}

std::vector<Aggregation> Aggregations::list() const {
  std::vector<Aggregation> all;
  for (std::size_t i = 1; i < kNames.size(); ++i) {
    if (has(static_cast<Aggregation>(i))) all.push_back(static_cast<Aggregation>(i));
  }
  return all;
}

}  // namespace elastrun::telemetry
