// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

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

}  // namespace elastrun::goodput
