// SPDX-License-Identifier: Apache-2.0
#include "export/kubeflow_progress.hpp"

#include "core/json.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <fmt/format.h>
#include <limits>
#include <utility>

namespace elastrun::exporter {
namespace {

using telemetry::Record;

constexpr std::string_view kOfWorkers = "elastrun.worker", kUsualGroup = "worker";
constexpr std::string_view kOfRecorders = "elastrun.goodput";

/// At most `most` bytes, cut between characters.
std::string cut(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  text.resize(most);
  return text;
}

std::optional<double> number(const telemetry::Value* value) {
  if (value == nullptr) return std::nullopt;
  if (const auto* whole = std::get_if<std::int64_t>(value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(value)) return *real;
  return std::nullopt;
}

std::string utc(WallTime when) {
  const auto seconds = static_cast<std::time_t>(
      std::chrono::floor<std::chrono::seconds>(when).time_since_epoch().count());
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "1970-01-01T00:00:00Z";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace

bool KubeflowProgress::take(const Record& record) {
  if (record.kind == Record::Kind::Event) return take_entry(record);
  if (record.kind != Record::Kind::Sample) return false;
  if (record.scope == kOfWorkers) {
    if (record.name != "step" || !number(&record.value)) return false;
    told_ = true;
    take_end(static_cast<std::int64_t>(*number(&record.value)), record.stamp.mono);
    return true;
  }
  // All ranks report the same names; a status has room for one of each.
  const auto value = number(&record.value);
  if (!value || number(record.find("rank")) != 0.0 || record.name.empty()) return false;
  const auto name =
      cut(record.scope == kUsualGroup ? record.name : record.scope + "/" + record.name, kText);
  // One place is the step's, see body().
  if (!values_.contains(name) && values_.size() + 1 >= kMetrics) return false;
  values_[name] = fmt::format("{:.6g}", *value);
  return true;
}

/// Of a recorder or the hooks of --goodput auto. A script that tells its steps, too, is heard once:
/// entries come later.
bool KubeflowProgress::take_entry(const Record& record) {
  if (record.scope != kOfRecorders || told_) return false;
  const TimePoint at = record.stamp.mono;
  if (record.name == "job_end_time" && begun_) {  // so has its last step
    take_end(*std::exchange(begun_, {}), at);
    return true;
  }
  const auto* const told = std::get_if<std::int64_t>(record.find("step_count"));
  if (told == nullptr) return false;
  if (record.name == "step_end_time") {
    take_end(*told, at);
    return true;
  }
  if (record.name != "step_start_time") return false;
  begun_ = *told;
  from_zero_ = from_zero_ || *told == 0;
  if (*told <= 0) return false;
  take_step(*told - 1, at);  // its begin is the end of the one before
  return true;
}

void KubeflowProgress::take_end(std::int64_t number, TimePoint at) {
  from_zero_ = from_zero_ || number == 0;
  take_step(number, at);
}

void KubeflowProgress::take_step(std::int64_t number, TimePoint at) {
  // Back behind the last one: the workers have started again, and the time before is not training.
  if (!first_ || number < last_->number) first_ = {number, at};
  last_ = {number, at};
}

/// How many: of those that are counted from 0 one more than the last number says.
std::int64_t KubeflowProgress::done() const {
  return last_->number + (from_zero_ ? 1 : 0);
}

std::optional<std::int64_t> KubeflowProgress::seconds_left() const {
  if (!steps_ || !last_ || last_->number <= first_->number) return std::nullopt;
  const double pace =
      to_seconds(last_->at - first_->at) / static_cast<double>(last_->number - first_->number);
  const auto left = static_cast<double>(std::max<std::int64_t>(*steps_ - done(), 0));
  // What the field holds.
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  const double seconds = std::clamp(pace * left, 0.0, kMost);
  // Rounded up by hand: std::ceil would bring libm into both programs.
  const auto whole = static_cast<std::int64_t>(seconds);
  return static_cast<double>(whole) < seconds ? whole + 1 : whole;
}

std::string KubeflowProgress::body(WallTime now) const {
  json::object status;
  if (steps_ && last_) {
    const double share = static_cast<double>(done()) / static_cast<double>(*steps_);
    status["progressPercentage"] = static_cast<std::int64_t>(std::clamp(share * 100, 0.0, 100.0));
  }
  if (const auto left = seconds_left()) status["estimatedRemainingSeconds"] = *left;
  json::array metrics;
  if (last_) metrics.push_back({{"name", "step"}, {"value", fmt::to_string(last_->number)}});
  for (const auto& [name, value] : values_) {
    metrics.push_back({{"name", name}, {"value", value}});
  }
  status["metrics"] = std::move(metrics);
  status["lastUpdatedTime"] = utc(now);
  return json::serialize(json::object{{"trainerStatus", std::move(status)}});
}

}  // namespace elastrun::exporter
