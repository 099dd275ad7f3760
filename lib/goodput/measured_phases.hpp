// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/text.hpp"
#include "goodput/bucket.hpp"
#include "goodput/measurement_entry.hpp"

#include <algorithm>
#include <string_view>

namespace elastrun::goodput {

/// What has a start and an end, and where its time goes.
struct MeasuredPhase {
  MeasurementKind start, end;
  Bucket bucket;
};
inline constexpr MeasuredPhase kMeasuredPhases[] = {
    {MeasurementKind::AcceleratorInitStart, MeasurementKind::AcceleratorInitEnd,
     Bucket::Initialization},
    {MeasurementKind::PreparationStart, MeasurementKind::PreparationEnd, Bucket::Preparation},
    {MeasurementKind::DataLoadingStart, MeasurementKind::DataLoadingEnd, Bucket::DataLoading},
    {MeasurementKind::CustomStart, MeasurementKind::CustomEnd, Bucket::Custom},
    {MeasurementKind::ElasticWaitStart, MeasurementKind::ElasticWaitEnd, Bucket::Rendezvous},
    {MeasurementKind::ElasticReinitStart, MeasurementKind::ElasticReinitEnd, Bucket::Restart},
    {MeasurementKind::SaveStart, MeasurementKind::SaveEnd, Bucket::Checkpoint},
    {MeasurementKind::RestoreStart, MeasurementKind::RestoreEnd, Bucket::Checkpoint},
};

/// Whether a custom event, or a phase of a worker, evaluates, by its name.
inline bool is_evaluation(std::string_view name) {
  constexpr std::string_view kNames[] = {"eval", "evaluation", "evaluate", "val", "validation"};
  return std::ranges::any_of(kNames, [name](auto one) { return to_lower(name) == one; });
}

inline Bucket bucket_of(const MeasuredPhase& phase, std::string_view name) {
  return phase.bucket == Bucket::Custom && is_evaluation(name) ? Bucket::Evaluation : phase.bucket;
}

}  // namespace elastrun::goodput
