// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "goodput/compat/measurement_log.hpp"

#include <array>
#include <boost/circular_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace elastrun::goodput {

/// From `begin` to `end`, POSIX seconds.
struct TimeSpan {
  double begin = 0;
  double end = 0;

  double length() const { return end - begin; }
};

/// Sorted, with those that overlap or touch made one.
std::vector<TimeSpan> merged(std::vector<TimeSpan> spans);

/// How long `span` lies within `spans`, which are as merged() returns them, or do not overlap.
double overlap(const TimeSpan& span, const std::vector<TimeSpan>& spans);

/// Statistics of step times as ml-goodput-measurement 0.2.3 defines them. All times in seconds.

struct StepSeconds {
  std::int64_t step = 0;
  double seconds = 0;
  bool operator==(const StepSeconds&) const = default;
};
/// Sorted by step; of several of one step the last one counts.
void keep_last_of_each(std::vector<StepSeconds>& steps);

/// Linear between order statistics, at (n - 1) * fraction. `values` must not be empty;
/// 0 <= fraction <= 1.
double percentile(std::span<const double> values, double fraction);

/// The mean of the times that are at most median + 3 * MAD; times below `shortest` are left out.
/// None if no time is left.
std::optional<double> ideal_step_time(std::span<const double> step_times, double shortest = 1.0);

struct AnomalousSteps {
  std::vector<double> times;  // beyond median + 3 * MAD
  double extra = 0;           // how much longer all of them took than as many normal ones
};
AnomalousSteps anomalous_steps(std::span<const double> step_times);

enum class DeviationOver { Job, Window };
/// One number for a dashboard, from the deviations of all steps in order: the mean of fewer than
/// 100; the 90th percentile of the last 100; for a job of at least 1,100 less the median of the
/// 1,000 before.
constexpr std::size_t kMostDeviations = 1100;  // earlier ones change nothing
double deviation_metric(std::span<const double> deviations, DeviationOver over);

/// How long the steps of a job take, from the numbers and times of those that are reported: as
/// goodput_calculator.hpp defines it, but for steps of any length, and for those that are reported
/// only every n-th time. Pure; memory does not grow. In seconds.
class StepPace {
 public:
  static constexpr std::size_t kKept = 1100;  // what deviation() looks at
  /// Ignores the same number again, and a lower one.
  void step(std::int64_t number, TimePoint now);
  /// Leaves out the time until the next step: the workers are stopped or start.
  void interrupt() { last_.reset(); }

  /// What a step takes if nothing disturbs it.
  std::optional<double> ideal() const;
  /// How far steps are from it.
  std::optional<double> deviation() const;

 private:
  struct Last {
    std::int64_t number;
    TimePoint at;
  };

  std::optional<Last> last_;
  boost::circular_buffer<double> times_{kKept};
};

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

struct SliceEfficiency {
  double stepping = 0;   // active / total slices, over time
  double available = 0;  // available / total
  bool counted = false;  // false: the log has no counts
};

/// Numbers of get_job_goodput and of get_job_goodput_details, which are the seconds.
struct JobGoodput {
  double percent = 0;
  BadputTimes badput_percent;
  std::int64_t max_productive_step = 0;
  double productive_seconds = 0;
  BadputTimes badput_seconds;
  double total_seconds = 0;
  int disruptions = 0;
  std::optional<double> ideal_step_time;  // seconds; none: no step of at least 1 s
  double step_deviation_metric = 0;
  std::optional<SliceEfficiency> slices;  // of an elastic calculator
};

struct WindowGoodput {
  double percent = 0;
  BadputTimes badput_percent;
  std::int64_t max_productive_step = 0;
  double total_seconds = 0;  // from the first to the last entry, not of the window
  int disruptions = 0;
  std::optional<SliceEfficiency> slices;
};

struct ExcludedGoodput {
  double percent = 0;
  BadputTimes badput_percent;
  std::int64_t max_productive_step = 0;
  double excluded_seconds = 0;
  double productive_seconds = 0;
  BadputTimes badput_seconds;
  double total_seconds = 0;  // without the excluded ones; not above 0: the rest has no answer
  int disruptions = 0;
};

/// GoodputCalculator of ml-goodput-measurement 0.2.3, to the letter, so that comparisons give its
/// numbers; what is true is said by goodput::Ledger. Over a log that may grow between calls. Where
/// the original raises ValueError this fails with Usage. Times are POSIX seconds.
class GoodputCalculator {
 public:
  enum class Kind { Base, Elastic };
  /// `log` outlives the calculator.
  explicit GoodputCalculator(const MeasurementLog& log, Kind kind = Kind::Base)
      : log_(log), kind_(kind) {}

  /// Of the entries that the log had got by `now`, or by `until`; and of what an earlier call knew,
  /// as there. `ideal` is honoured only where steps are new since the last call, as there.
  Result<JobGoodput> job(double now, std::optional<double> ideal = {},
                         std::optional<double> until = {});
  /// Of the entries that the log got after `window.begin` and until `window.end`.
  Result<WindowGoodput> window(const TimeSpan& window);
  /// Always from the beginning, of the entries until `now`. Of other calls nothing is used; of this
  /// one deviations() are kept.
  Result<ExcludedGoodput> job_without(std::vector<TimeSpan> spans, double now,
                                      std::optional<double> ideal = {});
  /// Of the entries until `now`, as job() takes them. Empty: none can be computed.
  const std::vector<StepSeconds>& step_deviations(double now, std::optional<double> ideal = {});

  /// Of the last call: how far each step was from the ideal, in seconds; after job_without() those
  /// below it are negative, as there.
  const std::vector<StepSeconds>& deviations() const { return deviations_.seconds; }
  std::optional<double> ideal_step_time() const { return deviations_.ideal; }

 private:
  struct Deviations {
    std::optional<double> ideal;
    std::vector<StepSeconds> seconds;
    std::ptrdiff_t steps = -1;  // of the log, then
  };
  struct Window {
    TimeSpan span;
    double read_from = 0;  // where the first of a series of windows that move forward began
    bool found = false;    // an entry
  };

  using Entries = std::span<const MeasurementEntry>;

  Entries entries_until(double time, std::vector<MeasurementEntry>& room) const;
  std::vector<MeasurementEntry> entries_in(const TimeSpan& window);
  std::optional<SliceEfficiency> slices(std::span<const MeasurementEntry> entries,
                                        const TimeSpan& span) const;
  void measure_again(Entries entries);
  void deviate(Entries entries, std::optional<double> ideal);
  void deviate_from(std::optional<double> ideal, std::vector<StepSeconds> steps);

  const MeasurementLog& log_;
  Kind kind_;
  double until_ = -std::numeric_limits<double>::infinity();  // what job() knows has come by then
  std::optional<MeasuredTimes> measured_;
  std::size_t measured_entries_ = 0;
  int disruptions_ = 0;  // of the last calculation, be it of the job or of a window
  Deviations deviations_;
  std::optional<Window> last_window_;
};

}  // namespace elastrun::goodput
