// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "goodput/compat/measured_times.hpp"
#include "goodput/compat/measurement_log.hpp"
#include "goodput/compat/step_times.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace elastrun::goodput {

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
