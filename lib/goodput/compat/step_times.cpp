// SPDX-License-Identifier: Apache-2.0
#include "goodput/compat/step_times.hpp"

#include <algorithm>
#include <numeric>

namespace elastrun::goodput {
namespace {

// The numbers of the original, whose answers these have to be.
constexpr double kShortest = 1.0;
constexpr double kSpread = 3.0;  // in median absolute deviations, not scaled
constexpr std::size_t kRecent = 100;
constexpr std::size_t kBaseline = kMostDeviations - kRecent;

double mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double magnitude(double value) {
  return value < 0 ? -value : value;
}

std::vector<double> magnitudes(std::span<const double> values) {
  std::vector<double> all(values.size());
  std::ranges::transform(values, all.begin(), magnitude);
  return all;
}

std::vector<double> long_enough(std::span<const double> step_times, double shortest) {
  std::vector<double> times;
  std::ranges::copy_if(step_times, std::back_inserter(times),
                       [shortest](double time) { return time >= shortest; });
  return times;
}

/// Beyond it a step is anomalous. `times` must not be empty.
double normal_limit(std::span<const double> times) {
  const double middle = percentile(times, 0.5);
  std::vector<double> distances(times.size());
  std::ranges::transform(times, distances.begin(),
                         [middle](double time) { return magnitude(time - middle); });
  return middle + kSpread * percentile(distances, 0.5);
}

}  // namespace

void keep_last_of_each(std::vector<StepSeconds>& steps) {
  if (!std::ranges::is_sorted(steps, {}, &StepSeconds::step)) {
    std::ranges::stable_sort(steps, {}, &StepSeconds::step);
  }
  std::size_t kept = 0;
  for (const auto& one : steps) {
    const bool again = kept > 0 && steps[kept - 1].step == one.step;
    steps[again ? kept - 1 : kept++] = one;
  }
  steps.resize(kept);
}

double percentile(std::span<const double> values, double fraction) {
  std::vector<double> sorted(values.begin(), values.end());
  // Linear between two neighbours, as numpy.percentile().
  const double place = static_cast<double>(sorted.size() - 1) * fraction;
  const auto low = static_cast<std::size_t>(place);
  const auto at_low = sorted.begin() + static_cast<std::ptrdiff_t>(low);
  std::nth_element(sorted.begin(), at_low, sorted.end());
  if (low + 1 == sorted.size()) return *at_low;
  const double above = *std::min_element(at_low + 1, sorted.end());
  return *at_low + (above - *at_low) * (place - static_cast<double>(low));
}

std::optional<double> ideal_step_time(std::span<const double> step_times, double shortest) {
  auto times = long_enough(step_times, shortest);
  if (times.empty()) return std::nullopt;
  std::erase_if(times, [limit = normal_limit(times)](double time) { return time > limit; });
  return mean(times);
}

AnomalousSteps anomalous_steps(std::span<const double> step_times) {
  AnomalousSteps found;
  const auto times = long_enough(step_times, kShortest);
  if (times.empty()) return found;
  const double limit = normal_limit(times);
  std::vector<double> normal;  // short ones, too: as in the original
  for (const double time : step_times) (time > limit ? found.times : normal).push_back(time);
  found.extra = std::accumulate(found.times.begin(), found.times.end(), 0.0) -
                static_cast<double>(found.times.size()) * mean(normal);
  return found;
}

double deviation_metric(std::span<const double> deviations, DeviationOver over) {
  const auto all = magnitudes(deviations);
  if (all.size() < kRecent) return mean(all);
  const std::span<const double> values(all);
  const double recent = percentile(values.last(kRecent), 0.9);
  if (over == DeviationOver::Window || all.size() < kBaseline + kRecent) return recent;
  return recent - percentile(values.last(kBaseline + kRecent).first(kBaseline), 0.5);
}

}  // namespace elastrun::goodput
