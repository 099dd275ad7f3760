// SPDX-License-Identifier: Apache-2.0
#include "telemetry/batch_series.hpp"

#include <cmath>

namespace elastrun::telemetry {
namespace {

double aggregate(const Window& batch, std::string_view name) {
  for (const auto& [known, value] : batch.aggregates) {
    const auto* const number = std::get_if<double>(&value);
    if (known == name && number != nullptr) return *number;
  }
  return 0;
}

}  // namespace

Range range_of(const Window& batch) {
  return {batch.count, aggregate(batch, "min"), aggregate(batch, "max"), aggregate(batch, "value")};
}

void BatchSeries::add(const Window& batch) {
  if (!enabled() || batch.count == 0) return;
  const double sum = aggregate(batch, "sum");
  const std::lock_guard lock(mutex_);
  // The sum of finite sums may still be beyond what a double holds, and would stay there.
  if (!std::isfinite(totals_.sum + sum)) return;
  totals_.count += batch.count;
  totals_.sum += sum;
  range_.merge(range_of(batch));
  if (!batch.sketch) return;
  if (!totals_.sketch) totals_.sketch.emplace();
  auto& sketch = *totals_.sketch;
  sketch.merge(*batch.sketch);
  // A worker sends what it likes: values far apart would make a bucket for each step between them.
  while (std::max(sketch.positive().counts.size(), sketch.negative().counts.size()) >
         kMostBuckets) {
    sketch.downscale(sketch.scale() - 1);
  }
}

Totals BatchSeries::harvest(Range& range) {
  const std::lock_guard lock(mutex_);
  range = std::exchange(range_, {});
  return totals_;
}

}  // namespace elastrun::telemetry
