// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Since when a scheduler has known the job or given it this node, from what is in `environment`
/// and on this machine; no scheduler is asked. The first of
///
/// * ELASTRUN_JOB_CREATED, in seconds since the epoch or as 2026-01-02T03:04:05Z: on Kubernetes an
///   annotation of the pod that the downward API hands on
/// * SLURM_JOB_START_TIME
/// * on Kubernetes, when kubelet made the volume of the pod's service account, which comes after
///   the pod was assigned to the node and before its images are pulled
///
/// None: nothing tells. `root`: where the machine's files are, for tests.
std::optional<WallTime> scheduled_since(const std::vector<std::string>& environment,
                                        const std::string& root = "");

}  // namespace elastrun::agent
