// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

/// Statistics of step times as ml-goodput-measurement 0.2.3 defines them. All times in seconds.
namespace elastrun::goodput {

struct StepSeconds {
  std::int64_t step = 0;
  double seconds = 0;
  bool operator==(const StepSeconds&) const = default;
};
/// Sorted by step; of several of one step the last one counts.
void keep_last_of_each(std::vector<StepSeconds>& steps);

/// Linear between order statistics, at (n - 1) * fraction. `values` must not be empty;
/// 0 <= fraction <= 1.
double percentile(std::span<const double> values, double fraction);

/// The mean of the times that are at most median + 3 * MAD; times below `shortest` are left out.
/// None if no time is left.
std::optional<double> ideal_step_time(std::span<const double> step_times, double shortest = 1.0);

struct AnomalousSteps {
  std::vector<double> times;  // beyond median + 3 * MAD
  double extra = 0;           // how much longer all of them took than as many normal ones
};
AnomalousSteps anomalous_steps(std::span<const double> step_times);

enum class DeviationOver { Job, Window };
/// One number for a dashboard, from the deviations of all steps in order: the mean of fewer than
/// 100; the 90th percentile of the last 100; for a job of at least 1,100 less the median of the
/// 1,000 before.
constexpr std::size_t kMostDeviations = 1100;  // earlier ones change nothing
double deviation_metric(std::span<const double> deviations, DeviationOver over);

}  // namespace elastrun::goodput
