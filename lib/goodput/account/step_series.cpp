// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/step_series.hpp"

#include <algorithm>

namespace elastrun::goodput {
namespace {

void append(StepSeries::Point& point, const StepSeries::Point& next) {
  point.at = next.at;
  point.last = next.last;
  point.min = std::min(point.min, next.min);
  point.max = std::max(point.max, next.max);
  point.sum += next.sum;
  point.count += next.count;
}

}  // namespace

void StepSeries::begin(std::int64_t number, Duration at) {
  const auto step = static_cast<double>(number);
  if (known_ && known_->done == step) return;  // heard after its end
  known_ = Known{step - 1, at};
}

void StepSeries::end(std::int64_t number, Duration at) {
  const auto before = known_;
  known_ = Known{static_cast<double>(number), at};
  // The same number again, or a lower one: no time of a step.
  if (!before || known_->done <= before->done || at <= before->at) return;
  const double steps = known_->done - before->done;
  add(number, at,
      Duration(static_cast<std::int64_t>(static_cast<double>((at - before->at).count()) / steps)));
}

void StepSeries::add(std::int64_t number, Duration at, Duration time) {
  const Point one{at, number, number, time, time, time, 1};
  if (!points_.empty() && points_.back().count < steps_per_point_) {
    return append(points_.back(), one);
  }
  points_.push_back(one);
  // At twice the number, so that a step costs a constant share of the halving.
  if (points_.size() <= 2 * kPoints) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points_.size(); i += 2) {
    Point point = points_[i];
    if (i + 1 < points_.size()) append(point, points_[i + 1]);
    points_[kept++] = point;
  }
  points_.resize(kept);
  steps_per_point_ *= 2;
}

}  // namespace elastrun::goodput
