// SPDX-License-Identifier: Apache-2.0
#include "goodput/compat/measured_segment.hpp"

#include <algorithm>

namespace elastrun::goodput {
namespace {

/// What custom events take of one step, and their share by name: those that lie within it, or,
/// `cut` at its ends, parts of them.
double book_customs(const TimeSpan& step, const CustomEvents& customs, bool cut,
                    BadputTimes& badput) {
  double seconds = 0;
  for (const auto& [name, event] : customs.around(step)) {
    double taken = 0;
    if (!cut) {
      if (event.begin < step.begin || event.end > step.end) continue;
      taken = event.length();
    } else {
      const TimeSpan part{std::max(event.begin, step.begin), std::min(event.end, step.end)};
      if (part.end <= part.begin) continue;
      taken = part.length();
    }
    badput.custom[std::string(name)] += taken;
    seconds += taken;
  }
  return seconds;
}

}  // namespace

bool StepSegment::known(std::int64_t step) const {
  if (rising_) {
    // As long as the numbers rise no set is kept beside them: a log may have a million steps.
    const auto place = std::ranges::lower_bound(steps_, step, {}, &Step::step);
    return place != steps_.end() && place->step == step;
  }
  return numbers_.contains(step);
}

bool StepSegment::add(std::int64_t step, double time) {
  if (!steps_.empty() && (!rising_ || step <= steps_.back().step)) {
    if (known(step)) return false;
    if (rising_) {
      for (const auto& one : steps_) numbers_.insert(one.step);
      rising_ = false;
    }
    numbers_.insert(step);
  }
  steps_.push_back({step, time});
  return true;
}

StepSegment::Step StepSegment::highest() const {
  return *std::ranges::max_element(steps_, {}, &Step::step);
}

StepSegment::Closed StepSegment::close(std::int64_t cut, const CustomEvents& customs,
                                       const std::vector<TimeSpan>* excluded,
                                       MeasuredTimes& times) const {
  auto& badput = times.badput;
  Closed closed;
  if (cut == 0 && excluded == nullptr) return closed;
  const auto lowest = std::ranges::min_element(steps_, {}, &Step::step)->step;
  double first = 0;
  std::size_t others = 0, counted = 0;
  for (std::size_t i = 1; i < steps_.size(); ++i) {
    const auto& [number, start] = steps_[i - 1];
    const TimeSpan span{start, steps_[i].time};
    const double cut_out = excluded == nullptr ? 0 : overlap(span, *excluded);
    closed.excluded += cut_out;
    if (steps_[i].step > cut) {
      const double lost = span.length() - cut_out;
      badput[BadputType::WastedProgress] += excluded == nullptr ? lost : std::max(0.0, lost);
      continue;
    }
    // Across a gap the time of one step is not known.
    if (steps_[i].step != number + 1) continue;
    const double customs_in = book_customs(span, customs, excluded != nullptr, badput);
    const double seconds = std::max(0.0, span.length() - customs_in - cut_out);
    closed.productive += seconds;
    closed.max_step = number;
    if (number == lowest) first = seconds;
    if (excluded != nullptr) times.steps.push_back({number, seconds});
    if (number != lowest) ++others;
    ++counted;
  }
  if (excluded != nullptr && counted > 0) others = counted - 1;  // as there
  if (others == 0) return closed;
  const double mean = (closed.productive - first) / static_cast<double>(others);
  const double startup = std::max(0.0, first - mean);
  badput[BadputType::ProgramStartup] += startup;
  closed.productive -= startup;
  if (excluded != nullptr) times.steps.push_back({lowest, first - startup});
  return closed;
}

}  // namespace elastrun::goodput
