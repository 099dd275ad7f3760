// SPDX-License-Identifier: Apache-2.0
// When things happen in tests of goodput.
#pragma once

#include "goodput/ledger/ledger.hpp"

#include <numeric>

namespace elastrun::goodput {

constexpr TimePoint kStart{std::chrono::seconds(1000)};

inline TimePoint at(Duration since_start) {
  return kStart + since_start;
}

inline Duration sum(const Ledger::Summary& summary) {
  return std::accumulate(summary.buckets.begin(), summary.buckets.end(), Duration{});
}

}  // namespace elastrun::goodput
