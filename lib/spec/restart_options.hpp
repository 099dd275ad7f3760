// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/job_spec.hpp"
#include "spec/merge.hpp"
#include "spec/override.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun::spec {

/// Fills what the options of the restart policy and of preemption say, once signals_to_handle and
/// forward_signals are known: a signal that preempts is handled, and passed on to no worker.
std::optional<Refusal> take_restart_options(JobSpec& job, const Values& values,
                                            std::vector<std::string>& warnings);

}  // namespace elastrun::spec
