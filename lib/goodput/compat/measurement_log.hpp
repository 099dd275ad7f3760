// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"
#include "telemetry/record.hpp"

#include <cstdint>
#include <limits>
#include <map>
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

}  // namespace elastrun::goodput
