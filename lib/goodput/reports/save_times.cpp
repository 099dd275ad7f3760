// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/save_times.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <string_view>
#include <variant>

namespace elastrun::goodput {
namespace {

constexpr std::string_view kWorker = "elastrun.worker";
constexpr double kShortestSave = 0.001;  // below it nothing was saved between the two

std::optional<std::int64_t> whole(const telemetry::Value* value) {
  const auto* number = std::get_if<std::int64_t>(value);
  return number == nullptr ? std::nullopt : std::optional(*number);
}

}  // namespace

void SaveTimes::take(const telemetry::Record& record) {
  if (record.name == "job.started") last_.reset();  // each agent has another steady clock
  if (record.scope != kWorker) return;
  if (record.name == "step") {
    if (const auto number = whole(&record.value)) last_ = {*number, record.stamp.mono};
    return;
  }
  if (record.name != "checkpoint" || whole(record.find("rank")).value_or(0) != 0) return;
  const auto saved = whole(record.find("step"));
  if (last_ && (saved == last_->number || saved == -1)) {
    seconds_.push_back(to_seconds(record.stamp.mono - last_->at));
  }
  last_.reset();  // a second one of the same step tells nothing
}

std::optional<double> SaveTimes::usual() const {
  if (seconds_.size() < kFewest) return std::nullopt;
  // The median: one save while the file system was slow does not speak for all.
  auto sorted = seconds_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  if (*middle < kShortestSave) return std::nullopt;
  return *middle;
}

}  // namespace elastrun::goodput
