// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/step_pace.hpp"

#include "core/text.hpp"
#include "goodput/compat/step_times.hpp"

namespace elastrun::goodput {

void StepPace::step(std::int64_t number, TimePoint now) {
  if (last_ && number == last_->number) return;
  if (last_ && number > last_->number && now >= last_->at) {
    times_.add(to_seconds(now - last_->at) / static_cast<double>(number - last_->number));
  }
  last_ = {number, now};
}

std::optional<double> StepPace::ideal() const {
  return ideal_step_time(times_.values(), 0);
}

std::optional<double> StepPace::deviation() const {
  const auto usual = ideal();
  if (!usual) return std::nullopt;
  auto times = times_.in_order();
  for (double& time : times) time -= *usual;
  return deviation_metric(times, DeviationOver::Job);
}

}  // namespace elastrun::goodput
