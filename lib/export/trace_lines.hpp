// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <set>
#include <string>

namespace elastrun::exporter {

/// The records of a run as the lines of one Chrome trace, whose time begins with the run. Each
/// process is named when it is first heard of: the agent above, the ranks below in order.
class TraceLines {
 public:
  explicit TraceLines(TimePoint start) : start_(start) {}
  /// Nothing for what a trace cannot show.
  std::string of(const telemetry::Record& record);

 private:
  const TimePoint start_;
  std::set<std::int64_t> named_;
};

}  // namespace elastrun::exporter
