// SPDX-License-Identifier: Apache-2.0
#include "goodput/checkpoint_interval.hpp"

#include <cmath>

namespace elastrun::goodput {

double CheckpointPolicy::best_interval() const {
  if (save >= 2 * mtbf) return mtbf;
  const double x = save / (2 * mtbf);
  return std::sqrt(2 * save * mtbf) * (1 + std::sqrt(x) / 3 + x / 9) - save;
}

double CheckpointPolicy::goodput(double interval) const {
  if (!(interval > 0)) return 0;
  const double wall =
      mtbf * std::exp(restart / mtbf) * std::expm1((interval + save) / mtbf) / interval;
  return std::isfinite(wall) ? 1 / wall : 0;
}

}  // namespace elastrun::goodput
