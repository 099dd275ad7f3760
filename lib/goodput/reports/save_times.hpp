// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "telemetry/record.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace elastrun::goodput {

/// How long the saves of a job took whose script tells steps and checkpoints, but not when a save
/// began: the time from the end of a step of rank 0 until it tells that the checkpoint of that step
/// is complete. A checkpoint that is complete after a later step was saved beside the training,
/// which it did not stop, and counts for nothing. Pure.
class SaveTimes {
 public:
  static constexpr std::size_t kFewest = 3;

  /// The records of a journal, in order.
  void take(const telemetry::Record& record);
  /// The median in seconds; none of fewer than kFewest, or where it is too short for a save.
  std::optional<double> usual() const;

 private:
  struct Step {
    std::int64_t number = 0;
    TimePoint at{};
  };
  std::optional<Step> last_;
  std::vector<double> seconds_;
};

}  // namespace elastrun::goodput
