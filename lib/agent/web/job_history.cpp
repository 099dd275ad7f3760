// SPDX-License-Identifier: Apache-2.0
#include "agent/web/job_history.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace elastrun::agent {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Five digits are more than a chart shows. By text: a logarithm would bring libm's 300 kB.
json::value shown(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  return parse_float(fmt::format("{:.5g}", value)).value_or(value);
}

}  // namespace

std::size_t JobHistory::index_of(const std::string& name) {
  const auto found = std::ranges::find(names_, name);
  if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
  // The names are the workers', and a script may invent one at each step.
  if (names_.size() == kSeries) return kSeries;
  names_.push_back(name);
  return names_.size() - 1;
}

void JobHistory::add(TimePoint now, WallTime at, const Values& values) {
  // A sample that comes a little early is not put off by a whole stretch.
  if (!points_.empty() && now < points_.back().time + stretch_ * 3 / 4) return;
  Point point{now, at, {}};
  for (const auto& [name, value] : values) {
    const auto index = index_of(name);
    if (index == kSeries) continue;
    if (point.values.size() <= index) point.values.resize(index + 1, kNone);
    point.values[index] = value;
  }
  points_.push_back(std::move(point));
  if (points_.size() <= kPoints) return;
  // Each second point goes: a job of weeks fits, and the chart still begins where the job does.
  std::deque<Point> half;
  for (std::size_t i = 0; i < points_.size(); i += 2) half.push_back(std::move(points_[i]));
  points_ = std::move(half);
  stretch_ *= 2;
}

json::object JobHistory::text() const {
  json::array at;
  std::vector<json::array> columns(names_.size());
  for (const auto& point : points_) {
    at.emplace_back(
        static_cast<double>(point.at.time_since_epoch() / std::chrono::milliseconds(100)) / 10);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      columns[i].push_back(shown(i < point.values.size() ? point.values[i] : kNone));
    }
  }
  json::object series;
  for (std::size_t i = 0; i < names_.size(); ++i) series[names_[i]] = std::move(columns[i]);
  return {{"at", std::move(at)}, {"series", std::move(series)}};
}

}  // namespace elastrun::agent
