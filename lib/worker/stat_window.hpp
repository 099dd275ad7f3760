// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fork_lock.hpp"
#include "quantile_sketch.hpp"
#include "stat_choice.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace elastrun::worker {
namespace detail {
/// The values of one stretch, summed up; those of this process alone.
class StatWindow {
 public:
  StatWindow() = default;
  explicit StatWindow(const std::vector<Aggregation>& aggregations)
      : sketched_(std::any_of(aggregations.begin(), aggregations.end(),
                              [](Aggregation one) { return one >= Aggregation::P50; })) {}

  /// True: this process was forked since, and what was in it is the parent's to tell.
  bool settle() {
    const auto now = generation.load(std::memory_order_relaxed);
    if (generation_ == now) return false;
    const bool sketched = sketched_;
    *this = {};
    sketched_ = sketched;
    return true;
  }
  void add(double value) {
    settle();
    min_ = count_ == 0 || value < min_ ? value : min_;
    max_ = count_ == 0 || value > max_ ? value : max_;
    last_ = value;
    sum_ += value;
    ++count_;
    const double away = value - mean_;
    mean_ += away / static_cast<double>(count_);
    squares_ += away * (value - mean_);
    if (sketched_) sketch_.add(value);
  }
  std::uint64_t count() const { return count_; }
  double last() const { return last_; }
  double min() const { return min_; }
  double max() const { return max_; }
  double sum() const { return sum_; }
  const Sketch& sketch() const { return sketch_; }

  /// 0 without values. That of Histogram is how many there were.
  double of(Aggregation aggregation) const {
    const auto count = static_cast<double>(count_);
    if (count_ == 0) return 0;
    switch (aggregation) {
      case Aggregation::Value:
        return last_;
      case Aggregation::Mean:
        return sum_ / count;
      case Aggregation::Sum:
        return sum_;
      case Aggregation::Max:
        return max_;
      case Aggregation::Min:
        return min_;
      case Aggregation::Stddev:
        return std::sqrt(squares_ / count);
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
        return count;
    }
  }

 private:
  double quantile(double rank) const {
    return std::clamp(sketch_.quantile(rank), min_, max_);  // a bucket may be wider than its values
  }

  bool sketched_ = false;
  std::uint32_t generation_ = generation.load(std::memory_order_relaxed);
  std::uint64_t count_ = 0;
  double last_ = 0, sum_ = 0, min_ = 0, max_ = 0, mean_ = 0, squares_ = 0;
  Sketch sketch_;
};
}  // namespace detail

}  // namespace elastrun::worker
