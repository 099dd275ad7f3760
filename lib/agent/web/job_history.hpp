// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/json.hpp"

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// The values of the page's charts since the job began, so that a page shows them whenever it is
/// opened. A point for each stretch of time; at kPoints every second one goes, and stretches become
/// twice as long: a job of weeks takes no more memory than one of minutes. Pure.
class JobHistory {
 public:
  using Values = std::vector<std::pair<std::string, double>>;
  static constexpr std::size_t kPoints = 240;
  static constexpr std::size_t kSeries = 32;  // names; the values of others are left out
  static constexpr Duration kFirstStretch = std::chrono::seconds(2);

  Duration stretch() const { return stretch_; }
  /// Left out while the stretch of the last point lasts.
  void add(TimePoint now, WallTime at, const Values& values);
  /// {"at": [seconds since the epoch, ...], "series": {NAME: [value or null, ...], ...}}
  json::object text() const;

 private:
  struct Point {
    TimePoint time;
    WallTime at;
    std::vector<double> values;  // by index in names_, shorter where names came later; NaN: none
  };
  std::size_t index_of(const std::string& name);

  Duration stretch_ = kFirstStretch;
  std::vector<std::string> names_;
  std::deque<Point> points_;
};

}  // namespace elastrun::agent
