// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace elastrun::goodput {

/// How often to save, from how long a save takes and how often the job fails. Pure; all times in
/// seconds. Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval",
/// CACM 17(9), 1974; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
/// restart dumps", FGCS 22(3), 2006, equations 20 and 37. Failures come at random, at any time,
/// with M seconds between two on average.
struct CheckpointPolicy {
  double mtbf = 0;     // M, > 0
  double save = 0;     // d, >= 0: training stands so long for each checkpoint
  double restart = 0;  // R, >= 0: from a failure until steps are done again

  /// Seconds of work between two checkpoints that cost least: with x = d / 2M,
  ///     t = sqrt(2dM) (1 + sqrt(x) / 3 + x / 9) - d    if d < 2M, else M.
  /// Young's is its first factor.
  double best_interval() const;
  /// The share of the time that is kept work, with `interval` seconds of it between two
  /// checkpoints:
  ///     t / (M exp(R / M) (exp((t + d) / M) - 1)).
  /// 0 where that is beyond what a number can hold.
  double goodput(double interval) const;
};

}  // namespace elastrun::goodput
