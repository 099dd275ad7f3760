// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "name_pattern.hpp"

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::worker {
enum class Aggregation {
  Value,
  Mean,
  Count,
  Sum,
  Max,
  Min,
  Stddev,  // of all values, not of a sample of them
  P50,
  P90,
  P95,
  P99,
  P999,
  Histogram
};

namespace detail {
constexpr const char* kAggregations[] = {"value", "mean",   "count",    "sum", "max",
                                         "min",   "stddev", "p50",      "p90", "p95",
                                         "p99",   "p999",   "histogram"};

/// Those of --aggregations, PATTERN=NAME[+NAME...] with commas between them, or what was chosen.
inline std::vector<Aggregation> chosen_for(std::string_view name, std::vector<Aggregation> chosen) {
  const char* const given = std::getenv("ELASTRUN_AGGREGATIONS");
  std::string_view rest = given == nullptr ? "" : given;
  while (!rest.empty()) {
    const auto one = rest.substr(0, rest.find(','));
    rest.remove_prefix(one.size() < rest.size() ? one.size() + 1 : rest.size());
    const auto equals = one.rfind('=');
    if (equals == one.npos || !fits(one.substr(0, equals), name)) continue;
    std::vector<Aggregation> instead;
    for (std::size_t i = 0; i < sizeof kAggregations / sizeof kAggregations[0]; ++i) {
      const auto list = '+' + std::string(one.substr(equals + 1)) + '+';
      const auto found = list.find('+' + std::string(kAggregations[i]) + '+');
      if (found != list.npos) instead.push_back(static_cast<Aggregation>(i));
    }
    return instead.empty() ? chosen : instead;
  }
  return chosen;
}
}  // namespace detail

}  // namespace elastrun::worker
