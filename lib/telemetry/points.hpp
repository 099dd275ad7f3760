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

/// Points as samples of that moment, for sinks that are told: labels are attributes, of which
/// `rank` and `local_rank` are numbers, and a counter has `total`: true. What has no single number
/// (stats, histograms, gauges without data) is left out. Pure.
std::vector<Record> records_of(const std::vector<Point>& points, const Stamp& at);

}  // namespace elastrun::telemetry
