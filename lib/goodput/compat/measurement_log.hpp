// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"
#include "telemetry/record.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::goodput {

/// What one line of a log of ml-goodput-measurement 0.2.3 says (its recorder, its elastic recorder,
/// and what Orbax' checkpoint manager writes into the same log), or what workers of ours add to it.
enum class MeasurementKind : std::uint8_t {
  JobStart,
  JobEnd,
  Step,
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
  std::int32_t detail = -1;  // index of a name, a checkpoint or slice counts in the MeasurementLog
  std::int64_t step = 0;
  double time = 0;      // POSIX seconds: the first member whose name contains "time"
  double log_time = 0;  // POSIX seconds: when the log got it
};

/// The member that makes an entry this, and holds its time: "step_start_time". Those of Orbax have
/// none: "save". Empty for Other.
std::string_view measurement_name(MeasurementKind kind);

struct MeasuredCheckpoint {
  bool persistent = false;  // its directory begins with gs://
  double seconds = 0;       // for which the checkpoint manager blocked
  double begin = 0;         // from when on, POSIX seconds
};

struct MeasuredSlices {
  double active = 0;
  double available = 0;
  double total = 0;
};

/// Writes the letters a to z large, as ml-goodput-measurement names custom events.
std::string in_capitals(std::string text);

/// The log of one job in order of arrival, as plain data: 32 bytes an entry.
class MeasurementLog {
 public:
  /// Appends one entry. Protocol if a member that the calculation needs is missing or not a number,
  /// with its name; the log is unchanged then. `log_time` in POSIX seconds; NaN: as `time`.
  Status add(const json::value& payload,
             double log_time = std::numeric_limits<double>::quiet_NaN());
  /// As add(), of a step that is right.
  void add_step(std::int64_t step, double time, double log_time);

  const std::vector<MeasurementEntry>& entries() const { return entries_; }
  /// Of a custom event in capitals, of an elastic wait as written.
  const std::string& name(const MeasurementEntry& entry) const { return name_at(entry.detail); }
  /// By MeasurementEntry::detail.
  const std::string& name_at(std::int64_t detail) const {
    return names_[static_cast<std::size_t>(detail)];
  }
  bool has_name(const MeasurementEntry& entry) const {
    return static_cast<std::size_t>(entry.detail) < names_.size();
  }
  const MeasuredCheckpoint& checkpoint(const MeasurementEntry& entry) const {
    return checkpoints_[static_cast<std::size_t>(entry.detail)];
  }
  const MeasuredSlices& slices(const MeasurementEntry& entry) const {
    return slices_[static_cast<std::size_t>(entry.detail)];
  }

 private:
  Status read(const json::object& payload, MeasurementEntry& entry);
  Status read_checkpoint(const json::object& payload, MeasurementEntry& entry);
  Status read_slices(const json::object& payload, MeasurementEntry& entry);
  Status read_name(const json::object& payload, std::string_view member, MeasurementEntry& entry);
  std::int32_t index_of(std::string name);

  std::vector<MeasurementEntry> entries_;
  std::vector<std::string> names_;
  std::map<std::string, std::int32_t, std::less<>> name_index_;
  std::vector<MeasuredCheckpoint> checkpoints_;
  std::vector<MeasuredSlices> slices_;
};

/// One entry by itself, with the name of a custom event or a wait.
struct NamedEntry {
  MeasurementEntry entry;
  std::string name;
};
/// As MeasurementLog::add.
Result<NamedEntry> read_measurement(const json::value& payload);

/// The scope of what recorders of goodput in workers tell: each record is an entry of
/// ml-goodput-measurement's log, whose members are its attributes.
inline constexpr std::string_view kRecorderScope = "elastrun.goodput";
/// The entry of such a record.
json::object entry_of(const telemetry::Record& record);
/// When it was, of one that the agent got at `now` and `wall`: not later.
TimePoint time_of_entry(double posix_seconds, TimePoint now, WallTime wall);

/// A log of ml-goodput-measurement as a journal (elastrun-protocol(7)): a record that begins the
/// job and names where it comes from, one for each entry, and one that counts what was left out. No
/// agent saw that job, so its books stay those of the log (keep_books). Pure.

/// What begins such a journal. `wall`: of the first entry.
telemetry::Record begin_of_log(const std::string& job, WallTime wall);
/// Whether a record is that; any other start of a job is an agent's.
bool is_begin_of_log(const telemetry::Record& record);

/// One entry, without members that are arrays or objects, which no calculation reads. `log_time` in
/// POSIX seconds, NaN where the log does not say, is a separate member.
telemetry::Record record_of_entry(const json::object& entry, double log_time);

/// So many lines of the log were no entries.
telemetry::Record lines_left_out(std::uint64_t count, WallTime wall);
/// Their number; zero of every other record.
std::uint64_t count_left_out(const telemetry::Record& record);

}  // namespace elastrun::goodput
