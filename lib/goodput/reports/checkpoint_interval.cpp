// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/checkpoint_interval.hpp"

#include "goodput/reports/exponential.hpp"
#include "telemetry/sketch.hpp"

#include <cmath>

namespace elastrun::goodput {

double CheckpointPolicy::best_interval() const {
  // Daly's estimate of higher order holds below that only.
  if (save >= 2 * mtbf) return mtbf;
  const double x = save / (2 * mtbf);
  const auto root = [](double of) { return telemetry::square_root(of); };
  return root(2 * save * mtbf) * (1 + root(x) / 3 + x / 9) - save;
}

double CheckpointPolicy::goodput(double interval) const {
  if (!(interval > 0)) return 0;
  // Daly (2006), per second of work: M e^(R/M) (e^((interval + save)/M) - 1) / interval.
  const double wall =
      mtbf * (1 + exp_minus_1(restart / mtbf)) * exp_minus_1((interval + save) / mtbf) / interval;
  return std::isfinite(wall) ? 1 / wall : 0;
}

}  // namespace elastrun::goodput
