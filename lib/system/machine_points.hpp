// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "system/machine.hpp"
#include "telemetry/registry.hpp"

#include <string>
#include <vector>

namespace elastrun::system {

/// A sample as points of a snapshot, under the names of OpenTelemetry's semantic conventions where
/// there is one (system.*, process.*, hw.*), else under elastrun.cgroup.*. elastrun-telemetry(7)
/// lists them. Counters count from `start`. Pure.
std::vector<telemetry::Point> points_of(const MachineSample& sample, TimePoint start);
/// Lists the prefixes of their names.
std::vector<std::string> machine_point_names();

}  // namespace elastrun::system
