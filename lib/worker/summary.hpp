// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantile_sketch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace elastrun::worker {
/// How the values of a window become one number. The standard deviation is that of all values, not
/// of a sample of them; percentiles and the histogram come from a Sketch.
enum class Aggregation {
  Value,
  Mean,
  Count,
  Sum,
  Max,
  Min,
  Stddev,
  P50,
  P90,
  P95,
  P99,
  P999,
  Histogram
};
/// Their names, in the order of the enumeration.
inline constexpr std::array<std::string_view, 13> kAggregations = {
    "value", "mean", "count", "sum", "max",  "min",      "stddev",
    "p50",   "p90",  "p95",   "p99", "p999", "histogram"};
inline std::string_view to_text(Aggregation one) {
  return kAggregations[static_cast<std::size_t>(one)];
}
/// Whether it takes a Sketch: those from P50 on, in the order of the enumeration.
inline bool needs_sketch(Aggregation one) {
  return one >= Aggregation::P50;
}

/// By Newton's method; 0 for what is not above 0. std::sqrt sets errno, for which the archive of
/// libm wants a private name of the very libc that it came with (elastrun-design(7)).
inline double square_root(double x) {
  if (!(x > 0)) return 0;
  if (!std::isfinite(x)) return x;
  int exponent = 0;
  const double part = std::frexp(x, &exponent);
  double root = std::ldexp(part, exponent / 2);  // at most twice as much, or half
  // Four steps have all digits, ten are none too many for what begins at a quarter.
  for (int i = 0; i < 10; ++i) root = (root + x / root) / 2;
  return root;
}

/// The values of one stretch, summed up. Those of parts merge into that of the whole. NaN and
/// infinities are counted apart and spoil nothing.
struct Summary {
  std::uint64_t count = 0, not_finite = 0;
  double last = 0, sum = 0, min = 0, max = 0;
  std::optional<Sketch> sketch{};  // where percentiles are asked for

  void add(double value) {
    if (!std::isfinite(value)) {
      ++not_finite;
      return;
    }
    if (count == 0) {
      min = max = pivot_ = value;
    } else {
      min = value < min ? value : min;
      max = value > max ? value : max;
    }
    // Distances from the first value: no division for each, and digits stay far from zero.
    const double away = value - pivot_;
    away_ += away;
    squares_ += away * away;
    ++count;
    sum += value;
    last = value;
    if (sketch) sketch->add(value);
  }
  void merge(const Summary& other) {
    not_finite += other.not_finite;
    if (other.sketch) {
      if (!sketch) sketch.emplace();
      sketch->merge(*other.sketch);
    }
    if (other.count == 0) return;
    if (count == 0) pivot_ = other.pivot_;
    const double shift = other.pivot_ - pivot_, many = static_cast<double>(other.count);
    away_ += other.away_ + many * shift;
    squares_ += other.squares_ + 2 * shift * other.away_ + many * shift * shift;
    min = count == 0 ? other.min : std::min(min, other.min);
    max = count == 0 ? other.max : std::max(max, other.max);
    sum += other.sum;
    count += other.count;
    last = other.last;
  }
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
  double stddev() const {
    const auto many = static_cast<double>(count);
    return count == 0 ? 0 : square_root((squares_ - away_ * away_ / many) / many);
  }
  /// 0 without values. That of Histogram is how many there were.
  double of(Aggregation aggregation) const {
    switch (aggregation) {
      case Aggregation::Value:
        return last;
      case Aggregation::Mean:
        return mean();
      case Aggregation::Sum:
        return sum;
      case Aggregation::Max:
        return max;
      case Aggregation::Min:
        return min;
      case Aggregation::Stddev:
        return stddev();
      case Aggregation::P50:
        return quantile(0.5);
      case Aggregation::P90:
        return quantile(0.9);
      case Aggregation::P95:
        return quantile(0.95);
      case Aggregation::P99:
        return quantile(0.99);
      case Aggregation::P999:
        return quantile(0.999);
      default:
        return static_cast<double>(count);
    }
  }
  /// A bucket may be wider than its values: bounded by them.
  double quantile(double rank) const {
    const auto found = sketch ? sketch->quantile(rank) : std::nullopt;
    return found ? std::clamp(*found, min, max) : 0;
  }

 private:
  double pivot_ = 0, away_ = 0, squares_ = 0;
};

}  // namespace elastrun::worker
