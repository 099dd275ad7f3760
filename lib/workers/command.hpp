// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/job_spec.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace elastrun::workers {

/// Argument vector of the worker with that local rank: torchrun's command for the job's mode, each
/// argument with `$local_rank` filled in. --run-path becomes a Python program that runs the script
/// in process, as torchrun's child does.
std::vector<std::string> worker_command(const spec::JobSpec& spec, int local_rank);

/// Why the script cannot be started a second time: it is `-`, standard input, or a pipe, which the
/// first start reads to its end. Empty: it can.
std::string why_not_again(const spec::JobSpec& spec);

/// A Python program for `python -c`: its first argument is a script, the rest its arguments. Runs
/// the script with runpy as `__main__`; an exception is written to TORCHELASTIC_ERROR_FILE in the
/// form of torch's `@record` and raised again. When the script has returned, it waits until those
/// of all workers of this node have (Channel::release). Standard library only.
extern const std::string_view kRunPathProgram;

/// See fill_template(), with the one name `local_rank`.
std::string fill_local_rank(std::string_view text, int local_rank);

/// The program in "failed (exitcode: ..) .. of binary: PROGRAM".
std::string program_name(const spec::JobSpec& spec);
/// The same without its directory, as torch's events and log lines name it.
std::string program_base_name(const spec::JobSpec& spec);

/// The title of the failure report: script or module as typed, or the program. With an interpreter
/// of the user's own (PYTHON_EXEC) that program, as torchrun does.
std::string entry_name(const spec::JobSpec& spec);

}  // namespace elastrun::workers
