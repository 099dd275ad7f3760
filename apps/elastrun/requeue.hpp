// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "spec/job_spec.hpp"

namespace elastrun {

/// Has Slurm requeue a job that was preempted (--on-preempt requeue), from group rank 0 alone.
/// Slurm ends our job step as soon as it has heard this, so it comes after everything else.
void requeue(const agent::JobResult& result, const spec::JobSpec& spec);

}  // namespace elastrun
