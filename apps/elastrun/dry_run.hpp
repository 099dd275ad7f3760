// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "spec/job_spec.hpp"

#include <string>

namespace elastrun {

/// For --dry-run: what would be started, worker by worker, as far as it is known before a
/// rendezvous: command, what the environment gets, directories, binding. Nothing is made or
/// started.
Result<std::string> dry_run_text(const spec::JobSpec& spec);

}  // namespace elastrun
