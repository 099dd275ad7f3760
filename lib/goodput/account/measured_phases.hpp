// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/compat/measurement_entry.hpp"
#include "goodput/ledger/ledger.hpp"

namespace elastrun::goodput {

/// What has a start and an end, and where its time goes.
struct MeasuredPhase {
  MeasurementKind start, end;
  Bucket bucket;
  std::string_view name{};  // for Ledger::enter
};
inline constexpr MeasuredPhase kMeasuredPhases[] = {
    {MeasurementKind::AcceleratorInitStart, MeasurementKind::AcceleratorInitEnd,
     Bucket::Initialization},
    {MeasurementKind::PreparationStart, MeasurementKind::PreparationEnd, Bucket::Preparation},
    {MeasurementKind::DataLoadingStart, MeasurementKind::DataLoadingEnd, Bucket::DataLoading},
    {MeasurementKind::CustomStart, MeasurementKind::CustomEnd, Bucket::Custom},
    {MeasurementKind::ElasticWaitStart, MeasurementKind::ElasticWaitEnd, Bucket::Rendezvous},
    {MeasurementKind::ElasticReinitStart, MeasurementKind::ElasticReinitEnd, Bucket::Restart},
    {MeasurementKind::SaveStart, MeasurementKind::SaveEnd, Bucket::Checkpoint, "save"},
    {MeasurementKind::RestoreStart, MeasurementKind::RestoreEnd, Bucket::Checkpoint, "restore"},
};

}  // namespace elastrun::goodput
