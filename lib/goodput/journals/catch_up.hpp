// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace elastrun::goodput {

/// Where one agent tells no more and the next one begins, the second may be further on the way to
/// the next start of the workers: what it did on that way before counts, and happens now. Pure.
class CatchUp {
 public:
  /// The steps of that way, which restarts with each round.
  enum class Step : std::uint8_t { Working, Stopping, Gone, Joining, Starting };

  /// Another agent begins to tell.
  void begin() { missed_.clear(); }
  /// One of its records that counts, or that of an agent before it, on the axis of all.
  void told(const telemetry::Record& record);
  /// One of its records from before its time, which counts for nothing by itself; at `at` on that
  /// axis.
  void missed(const telemetry::Record& record, TimePoint at);
  /// Those that were not told yet, in order. To be told as of now; it is not given again.
  std::vector<telemetry::Record> take();

 private:
  struct Missed {
    std::optional<Step> step;  // none: the order to restart
    telemetry::Record record;
  };
  Step step_ = Step::Working;
  bool ordered_ = false;                      // the order to restart was told on this way
  TimePoint round_since_ = TimePoint::min();  // of the last round that was told
  std::vector<Missed> missed_;                // at most one of each
};

}  // namespace elastrun::goodput
