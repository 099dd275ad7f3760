// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/job_spec.hpp"
#include "spec/merge.hpp"

#include <optional>

namespace elastrun::spec {

/// Fills each member of the job that a row of the option table names with the value that won. A
/// whole number or a time below zero and a number that is not above it are refused, in torchrun's
/// words; numbers that do not fit are the largest that do.
std::optional<Refusal> fill_fields(JobSpec& job, const Values& values);

}  // namespace elastrun::spec
