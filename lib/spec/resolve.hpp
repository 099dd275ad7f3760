// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/job_spec.hpp"
#include "spec/merge.hpp"
#include "spec/override.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun::spec {

/// What people call the job: --name, else the --rdzv-id that was given, else the script's name
/// without `.py`, or the module's. Refuses (exit code 2) a --name that cannot be shown on a line or
/// be a part of a file name.
std::optional<Refusal> name_job(JobSpec& job, Values& values);

/// A job that can be run, and how it came to be so.
struct Resolved {
  JobSpec spec;
  Values values;                      // for --explain
  std::string script_source;          // "on the command line", "job.toml:3"
  std::vector<std::string> warnings;  // for the launcher's log, in order; the job runs all the same
  std::vector<std::string> notes;     // the same at info level
  /// For what people have to be told who have started a job with `spec.cannot_start`.
  std::optional<Refusal> refusal{};
};

/// Merges command line, PET_* variables, the TOML file, the scheduler's variables and the defaults,
/// in this order of strength, and checks the result. What torchrun's parser or launcher refuses is
/// refused with its texts and exit codes; what it silently drops is a warning.
/// Asks `around` alone; the same answers give the same job (but for random run ids).
Answer<Resolved> resolve(const CommandLine& line, const HostEnvironment& around);

}  // namespace elastrun::spec
