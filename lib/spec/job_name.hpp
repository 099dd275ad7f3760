// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/job_spec.hpp"
#include "spec/merge.hpp"

namespace elastrun::spec {

/// What people call the job: --name, else the --rdzv-id that was given, else the script's name
/// without `.py`, or the module's. Refuses (exit code 2) a --name that cannot be shown on a line or
/// be a part of a file name.
std::optional<Refusal> name_job(JobSpec& job, Values& values);

}  // namespace elastrun::spec
