// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/aggregation.hpp"
#include "telemetry/record.hpp"
#include "telemetry/sketch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

namespace elastrun::telemetry {

/// What is known of the values of one stretch of time; T is double or int64_t. Summaries of parts
/// merge into that of the whole. NaN and infinities are counted apart and spoil nothing.
template <class T>
struct Summary {
  std::uint64_t count = 0;
  T last{}, sum{}, min{}, max{};  // the sum of integers stops at the ends of its type
  double squares = 0;             // of the distances from the mean, added up
  std::uint64_t not_finite = 0;
  std::optional<Sketch> sketch{};  // where quantiles are asked for

  void add(T value);
  void merge(const Summary& other);
  /// Value, mean, sum, max and min as T (an integer's mean is cut towards zero), 0 without values;
  /// quantiles without values or without a sketch are null.
  Value get(Aggregation aggregation) const;
  double mean() const { return count == 0 ? 0 : static_cast<double>(sum) / n(); }
  double stddev() const { return count == 0 ? 0 : square_root(squares / n()); }

 private:
  double n() const { return static_cast<double>(count); }
  static T added(T a, T b);
};

template <class T>
T Summary<T>::added(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    T result;
    if (!__builtin_add_overflow(a, b, &result)) return result;
    return b > 0 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
  }
}

template <class T>
void Summary<T>::add(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {
      not_finite += 1;
      return;
    }
  }
  const double before = static_cast<double>(value) - mean();
  min = count == 0 ? value : std::min(min, value);
  max = count == 0 ? value : std::max(max, value);
  const bool first = count == 0;
  count += 1;
  sum = added(sum, value);
  if (!first) squares += before * (static_cast<double>(value) - mean());  // Welford
  last = value;
  if (sketch) sketch->add(static_cast<double>(value));
}

template <class T>
void Summary<T>::merge(const Summary& other) {
  not_finite += other.not_finite;
  if (other.sketch) {
    if (!sketch) sketch.emplace();
    sketch->merge(*other.sketch);
  }
  if (other.count == 0) return;
  if (count != 0) {  // T. F. Chan et al., 1979
    const double apart = other.mean() - mean();
    squares += apart * apart * n() * other.n() / (n() + other.n());
  }
  squares += other.squares;
  min = count == 0 ? other.min : std::min(min, other.min);
  max = count == 0 ? other.max : std::max(max, other.max);
  sum = added(sum, other.sum);
  count += other.count;
  last = other.last;
}

template <class T>
Value Summary<T>::get(Aggregation aggregation) const {
  switch (aggregation) {
    case Aggregation::None:
      return std::monostate{};
    case Aggregation::Last:
      return last;
    case Aggregation::Mean:
      if constexpr (std::is_integral_v<T>) return count == 0 ? T{} : sum / static_cast<T>(count);
      return static_cast<T>(mean());
    case Aggregation::Count:
      return static_cast<std::int64_t>(count);
    case Aggregation::Sum:
      return sum;
    case Aggregation::Max:
      return max;
    case Aggregation::Min:
      return min;
    case Aggregation::Stddev:
      return stddev();
    default:
      break;
  }
  const auto found = sketch ? sketch->quantile(*quantile_of(aggregation)) : std::nullopt;
  if (!found) return std::monostate{};
  // A bucket is wider than what was seen when it holds the smallest or the largest value.
  return std::clamp(*found, static_cast<double>(min), static_cast<double>(max));
}

}  // namespace elastrun::telemetry
