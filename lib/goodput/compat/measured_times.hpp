// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/compat/measurement_log.hpp"
#include "goodput/compat/step_times.hpp"
#include "goodput/compat/time_spans.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace elastrun::goodput {

/// The buckets of ml-goodput-measurement 0.2.3, with its numbers.
enum class BadputType : std::uint8_t {
  TpuInitialization = 1,
  TrainingPrep,
  ProgramStartup,
  DataLoadingSync,
  DataLoadingAsync,
  CheckpointSave,
  CheckpointRestore,
  WastedProgress,
  InfrastructureRecovery,
  CustomEvents,  // the sum; by name beside it
  Other,
  ElasticSliceDown,
  ElasticScaleUp,
  ElasticReinitialization,
};
constexpr std::size_t kBadputTypes = 15;  // 0 is not used
/// As there: "TPU_INITIALIZATION", "CUSTOM_BADPUT_EVENTS".
std::string_view badput_name(BadputType type);

/// Seconds by bucket. `type` is never CustomEvents: these are in `custom`, by name.
struct BadputTimes {
  std::array<double, kBadputTypes> seconds{};
  std::map<std::string, double> custom;

  double& operator[](BadputType type) { return seconds[static_cast<std::size_t>(type)]; }
  double operator[](BadputType type) const { return seconds[static_cast<std::size_t>(type)]; }
};

/// By name, as there: each bucket, and under CUSTOM_BADPUT_EVENTS an object of the custom ones.
json::object badput_json(const BadputTimes& times);

/// What one pass over a log finds, in seconds. Its buckets may overlap, as there; OTHER is 0.
struct MeasuredTimes {
  double productive = 0;
  BadputTimes badput;
  std::int64_t max_productive_step = 0;
  int disruptions = 0;  // how often a step number was there already
  double excluded = 0;
  std::vector<StepSeconds> steps;  // how long each took, of a pass with exclusions
};

struct MeasureBy {
  bool elastic = false;
  const std::vector<TimeSpan>* excluded = nullptr;  // merged(); none: the pass without exclusions
};

/// The calculation of ml-goodput-measurement 0.2.3 with all that is odd about it, so that its
/// numbers can be compared: section 2 of that library's description, in the words of its methods.
/// `entries` are of `log`. O(n log n) at most, where the original is O(n * custom events).
MeasuredTimes measure(const MeasurementLog& log, std::span<const MeasurementEntry> entries,
                      const MeasureBy& how);

/// Closed spans of the custom events of a log, by start, so that those of a step are found at once.
class CustomEvents {
 public:
  struct Event {
    std::string_view name;
    TimeSpan span;
  };
  CustomEvents(const MeasurementLog& log, std::span<const MeasurementEntry> entries);

  /// Those that may overlap `span`; the caller looks closer.
  std::span<const Event> around(const TimeSpan& span) const;

 private:
  std::vector<Event> events_;
  double longest_ = 0;
};

}  // namespace elastrun::goodput
