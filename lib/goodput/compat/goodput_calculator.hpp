// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "telemetry/record.hpp"

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
#include <vector>

namespace elastrun::goodput {

/// What one line of a log of ml-goodput-measurement 0.2.3 says (its recorder, its elastic recorder,
/// and what Orbax' checkpoint manager writes into the same log), or what workers of ours add to it.
enum class MeasurementKind : std::uint8_t {
  Step,
  JobStart,
  JobEnd,
  AcceleratorInitStart,
  AcceleratorInitEnd,
  PreparationStart,
  PreparationEnd,
  DataLoadingStart,
  DataLoadingEnd,
  CustomStart,
  CustomEnd,
  Save,
  Restore,
  EmergencyRestore,
  ElasticWaitStart,
  ElasticWaitEnd,
  ElasticReinitStart,
  ElasticReinitEnd,
  SliceCounts,
  // Ours: that log has neither the end of a step nor the begin of a checkpoint.
  StepEnd,
  SaveStart,
  SaveEnd,
  RestoreStart,
  RestoreEnd,
  Other,  // nothing that the calculation reads
};

struct MeasurementEntry {
  MeasurementKind kind = MeasurementKind::Other;
  std::int32_t detail = -1;  // see MeasurementLog::detail; -1: none
  std::int64_t step = 0;
  double time = 0;      // POSIX seconds: the first member whose name contains "time"
  double log_time = 0;  // POSIX seconds: when the log got it
};

/// The member that makes an entry this, and holds its time: "step_start_time". Those of Orbax have
/// none: "save". Empty for Other.
std::string_view measurement_name(MeasurementKind kind);

/// Orbax writes it.
constexpr bool is_of_orbax(MeasurementKind kind) {
  return kind >= MeasurementKind::Save && kind <= MeasurementKind::EmergencyRestore;
}

/// What an entry has beside its step and its time.
struct MeasurementDetail {
  std::string name{};       // of a custom event in capitals, of an elastic wait as written
  bool persistent = false;  // of a checkpoint: its directory begins with gs://
  double seconds = 0;       // for which the checkpoint manager blocked
  double begin = 0;         // from when on, POSIX seconds
  double active = 0, available = 0, total = 0;  // slices
};

/// Writes the letters a to z large, as ml-goodput-measurement names custom events.
std::string in_capitals(std::string text);

/// The members of an entry: the attributes of its record. An array or object, which no calculation
/// reads, is NaN, which JSON has not.
using Members = std::span<const telemetry::Attribute>;
std::vector<telemetry::Attribute> members_of(const json::object& entry);
/// The value of a member, or null.
const telemetry::Value* find_in(Members members, std::string_view name);
/// A count that recorders tell; zero unless it is a number from 1 on.
std::uint64_t count_in(Members members, std::string_view name);

/// The kind of an entry, whether the rest of it is sound or not.
MeasurementKind kind_of(Members members);
/// One entry by itself.
struct ReadEntry {
  MeasurementEntry entry;
  MeasurementDetail detail;
};
/// Protocol if a member that the calculation needs is missing or not a number, with its name.
Result<ReadEntry> read_measurement(Members members);

/// The log of one job in order of arrival, as plain data: 32 bytes an entry.
class MeasurementLog {
 public:
  /// Appends one entry; fails as read_measurement(), and changes nothing then. `log_time` in POSIX
  /// seconds; NaN: as the entry's time.
  Status add(Members members, double log_time = std::numeric_limits<double>::quiet_NaN());
  /// Appends a step. False, and nothing is changed: add() would refuse it.
  bool add_step(std::int64_t step, double time, double log_time);

  const std::vector<MeasurementEntry>& entries() const { return entries_; }
  /// By MeasurementEntry::detail.
  const MeasurementDetail& detail(std::int64_t place) const {
    return details_[static_cast<std::size_t>(place)];
  }

 private:
  std::vector<MeasurementEntry> entries_;
  std::vector<MeasurementDetail> details_;
  std::map<std::string, std::int32_t, std::less<>> named_;  // places in details_
};

/// The scope of what recorders of goodput in workers tell: each record is an entry of
/// ml-goodput-measurement's log, whose members are its attributes.
inline constexpr std::string_view kRecorderScope = "elastrun.goodput";
/// When it was, of one that the agent got at `now` and `wall`: not later.
TimePoint time_of_entry(double posix_seconds, TimePoint now, WallTime wall);

/// From `begin` to `end`, POSIX seconds.
struct TimeSpan {
  double begin = 0;
  double end = 0;

  double length() const { return end - begin; }
};

struct StepSeconds {
  std::int64_t step = 0;
  double seconds = 0;
  bool operator==(const StepSeconds&) const = default;
};

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

struct SliceEfficiency {
  double stepping = 0;   // active / total slices, over time
  double available = 0;  // available / total
};

/// What a calculator says of a job or a window: the numbers of get_job_goodput, of
/// get_job_goodput_details, which are the seconds, and of their like.
struct CalculatedGoodput {
  double percent = 0;
  BadputTimes badput_percent{};
  std::int64_t max_productive_step = 0;
  double productive_seconds = 0;
  BadputTimes badput_seconds{};
  // Without the excluded ones; where these leave none, the rest is zero. Of a window from the
  // first to the last entry.
  double total_seconds = 0;
  double excluded_seconds = 0;
  int disruptions = 0;
  std::optional<double> ideal_step_time{};  // seconds, of job(); none: no step of at least 1 s
  double step_deviation_metric = 0;
  std::optional<SliceEfficiency> slices{};  // of an elastic calculator, if the log counts any
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
  Result<CalculatedGoodput> job(double now, std::optional<double> ideal = {},
                                std::optional<double> until = {});
  /// Of the entries that the log got after `window.begin` and until `window.end`.
  Result<CalculatedGoodput> window(const TimeSpan& window);
  /// Always from the beginning, of the entries until `now`. Of other calls nothing is used; of this
  /// one deviations() are kept.
  Result<CalculatedGoodput> job_without(std::vector<TimeSpan> spans, double now,
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
  CalculatedGoodput measure(Entries entries, const std::vector<TimeSpan>* excluded = nullptr,
                            std::vector<StepSeconds>* steps = nullptr);
  void measure_again(Entries entries);
  void deviate(Entries entries, std::optional<double> ideal);
  void deviate_from(std::optional<double> ideal, std::vector<StepSeconds> steps);

  const MeasurementLog& log_;
  Kind kind_;
  double until_ = -std::numeric_limits<double>::infinity();  // what job() knows has come by then
  std::optional<CalculatedGoodput> measured_;                // without shares
  std::size_t measured_entries_ = 0;
  int disruptions_ = 0;  // of the last calculation, be it of the job or of a window
  Deviations deviations_;
  std::optional<Window> last_window_;
};

}  // namespace elastrun::goodput
