// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "telemetry/windows.hpp"

#include <deque>
#include <mutex>

namespace elastrun::telemetry {

/// Windows that end with a certain value, for series that several threads add to: that cannot be
/// told from cells, so there is a lock around the few instructions. Closed windows wait here until
/// they are collected; the oldest of many goes first.
class ExactWindows {
 public:
  using Closed = Windows<double>::Closed;
  /// Borrows `clock`.
  ExactWindows(const Clock& clock, WindowPlan plan, bool with_sketch)
      : clock_(clock), windows_(plan, with_sketch) {}

  void add(double value) noexcept;
  /// What has closed since the last call, by `now` at the latest.
  std::vector<Closed> take_closed(TimePoint now);
  std::uint64_t lost() const;

 private:
  static constexpr std::size_t kMost = 1024;

  const Clock& clock_;
  mutable std::mutex mutex_;
  Windows<double> windows_;
  std::vector<Closed> closing_;
  std::deque<Closed> closed_;
  std::uint64_t lost_ = 0;
};

}  // namespace elastrun::telemetry
