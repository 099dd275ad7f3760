// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <vector>

namespace elastrun::telemetry {

/// Points as samples of that moment, for sinks that are told: labels are attributes, of which
/// `rank` and `local_rank` are numbers, and a counter has `total`: true. What has no single number
/// (stats, histograms, gauges without data) is left out. Pure.
std::vector<Record> records_of(const std::vector<Point>& points, const Stamp& at);

}  // namespace elastrun::telemetry
