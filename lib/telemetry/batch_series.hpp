// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/series.hpp"

namespace elastrun::telemetry {

/// Values that others have summed up: workers, which tell theirs once a second. For all threads; it
/// is told seldom, so that a lock costs nothing.
class BatchSeries final : public Series {
 public:
  /// Buckets of each sign that are kept; beyond that the resolution is halved: the values of a
  /// worker may span 600 octaves, and its series must not take a megabyte each.
  static constexpr std::size_t kMostBuckets = 640;

  void add(const Window& batch);
  Totals harvest(Range& range) override;

 private:
  std::mutex mutex_;
  Totals totals_;
  Range range_;  // since the last harvest
};

/// Counts, sums, extremes and, where `batch` has one, the sketch. What is not finite is left out.
Range range_of(const Window& batch);

}  // namespace elastrun::telemetry
