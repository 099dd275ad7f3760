// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"
#include "telemetry/route.hpp"

namespace elastrun::telemetry {

/// Sends the windows of a registry that have ended down a pipeline. A driver calls step(): a loop
/// with an alarm, a thread, a test. Borrows both.
class Collector {
 public:
  Collector(Registry& registry, Pipeline& pipeline) : registry_(registry), pipeline_(pipeline) {}
  /// When to call again; nothing if there is nothing to wait for. Being late loses no value: what
  /// several windows would have had is in one.
  std::optional<TimePoint> step() {
    for (auto& record : registry_.close_windows()) pipeline_.emit(std::move(record));
    return registry_.due();
  }

 private:
  Registry& registry_;
  Pipeline& pipeline_;
};

}  // namespace elastrun::telemetry
