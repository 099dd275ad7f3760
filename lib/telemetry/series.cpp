// SPDX-License-Identifier: Apache-2.0
#include "telemetry/series.hpp"

#include <algorithm>
#include <cmath>

namespace elastrun::telemetry {

void Range::merge(const Range& later) {
  if (later.count == 0) return;
  min = count == 0 ? later.min : std::min(min, later.min);
  max = count == 0 ? later.max : std::max(max, later.max);
  last = later.last;
  count += later.count;
}

Summary<double> Series::since(const Cursor& cursor, const Totals& totals) const {
  Summary<double> summary;
  summary.not_finite = totals.not_finite - cursor.base.not_finite;
  if (totals.sketch) {
    summary.sketch = totals.sketch;
    if (cursor.base.sketch) summary.sketch->subtract(*cursor.base.sketch);
  }
  summary.count = totals.count - cursor.base.count;
  // Without values least and most do not exist: the range holds zeros that were never measured.
  if (summary.count == 0) return summary;
  summary.sum = totals.sum - cursor.base.sum;
  summary.min = cursor.range.min;
  summary.max = cursor.range.max;
  summary.last = cursor.range.last;
  const auto n = static_cast<double>(summary.count);
  // The squares are of differences from the shift; the result is of those from the mean.
  const double from_shift = summary.sum - n * shift();
  const double squares = totals.squares - cursor.base.squares;
  // Rounding may take it a little below zero, whose root is NaN.
  summary.squares = std::max(0.0, squares - from_shift * from_shift / n);
  return summary;
}

Totals GaugeSeries::harvest(Range& range) {
  range = {};
  if (known_.load(std::memory_order_relaxed)) {
    const double value = value_.load(std::memory_order_relaxed);
    // A gauge holds its value until the next one, so each harvest counts it again.
    times_ += 1;
    sum_ += value;
    range = {1, value, value, value};
  }
  Totals totals;
  totals.count = times_;
  totals.sum = is_sum_ ? value_.load(std::memory_order_relaxed) : sum_;
  return totals;
}

Summary<double> GaugeSeries::since(const Cursor& cursor, const Totals& totals) const {
  if (!is_sum_) return Series::since(cursor, totals);
  Summary<double> summary;
  const double more = totals.sum - cursor.base.sum;
  if (more != 0) summary.add(more);
  return summary;
}

double StatSeries::shift() const {
  const double shift = shift_.load(std::memory_order_relaxed);
  return std::isnan(shift) ? 0 : shift;
}

void StatSeries::want_sketch() {
  cells_->on_new([this](StatCell& cell) {
    if (cell.sketch() != nullptr) return;
    // Never taken away again: a thread may be adding to it at any moment.
    sketches_.push_back(std::make_unique<SketchCell>());
    cell.want_sketch(sketches_.back().get());
  });
}

Totals StatSeries::harvest(Range& range) {
  // Values still added to the tick that ends now count with the next one.
  const std::uint64_t ended = tick_.fetch_add(1);
  Totals totals;
  range = {};
  cells_->each([&](const StatCell& cell, std::size_t place) {
    if (place >= seen_.size()) seen_.resize(place + 1);
    const StatReading now = cell.read();
    const auto fold = [&](const StatReading::Tick& tick, std::uint64_t end) {
      if (end > seen_[place]) range.merge({end - seen_[place], tick.min, tick.max, now.last});
    };
    // What came before the tick that runs now and was not counted yet.
    fold(now.previous, now.current.count_before);
    const bool next_has_begun = now.current.number > ended;
    if (!next_has_begun) fold(now.current, now.count);
    // Values of the next tick are left to the next harvest.
    seen_[place] = next_has_begun ? now.current.count_before : now.count;
    totals.count += seen_[place];
    totals.sum += next_has_begun ? now.current.sum_before : now.sum;
    totals.squares += next_has_begun ? now.current.squares_before : now.squares;
    totals.not_finite += now.not_finite;
    if (const SketchCell* const sketch = cell.sketch()) {
      if (!totals.sketch) totals.sketch.emplace();
      sketch->read(*totals.sketch);
    }
  });
  return totals;
}

}  // namespace elastrun::telemetry
