// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <map>
#include <string>
#include <vector>

namespace elastrun::telemetry {

/// What has been added since the last pull, of points whose totals are kept elsewhere. Pure.
class PointDeltas {
 public:
  /// Gauges as they are; of totals what they have risen by, if anything. A total that is seen for
  /// the first time, or has fallen because it restarted, has not risen.
  std::vector<Point> since_last(std::vector<Point> points);

 private:
  std::map<std::string, double> last_;  // by name and labels
};

}  // namespace elastrun::telemetry
