// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"
#include "goodput/compat/measurement_entry.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::goodput {

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

}  // namespace elastrun::goodput
