// SPDX-License-Identifier: Apache-2.0
#include "goodput/step_pace.hpp"

#include "core/text.hpp"
#include "goodput/step_times.hpp"

#include <algorithm>

namespace elastrun::goodput {

void StepPace::step(std::int64_t number, TimePoint now) {
  if (last_ && number == last_->number) return;
  if (last_ && number > last_->number && now >= last_->at) {
    const double time = to_seconds(now - last_->at) / static_cast<double>(number - last_->number);
    if (times_.size() < kKept) {
      times_.push_back(time);
    } else {
      times_[next_] = time;
      next_ = (next_ + 1) % kKept;
    }
  }
  last_ = {number, now};
}

std::vector<double> StepPace::in_order() const {
  std::vector<double> times(times_.size());
  std::ranges::rotate_copy(times_, times_.begin() + static_cast<std::ptrdiff_t>(next_),
                           times.begin());
  return times;
}

std::optional<double> StepPace::ideal() const {
  return ideal_step_time(times_, 0);
}

std::optional<double> StepPace::deviation() const {
  const auto usual = ideal();
  if (!usual) return std::nullopt;
  auto times = in_order();
  for (double& time : times) time -= *usual;
  return deviation_metric(times, DeviationOver::Job);
}

}  // namespace elastrun::goodput
