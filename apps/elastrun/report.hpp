// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/verdict/verdict.hpp"
#include "files/blocking_calls.hpp"
#include "spec/job_spec.hpp"

#include <string>

namespace elastrun {

/// Returns what stderr gets when the job is over. After a failure: torchrun's block (in brief if a
/// person looks on), where the time went, our verdict, and as the last line the outcome, which no
/// table pushes off the screen. After a success nothing, unless the job was restarted, was long, or
/// a person looks on. --summary says how much of it; only group rank 0 gives the account.
std::string report_text(const agent::JobResult& result, const spec::JobSpec& spec,
                        const agent::Reader& reader);

/// Leaves the failure for the program that started us: in our own TORCHELASTIC_ERROR_FILE, if there
/// is one, as torchrun does. With `files`, by that thread.
void hand_error_on(const agent::JobResult& result, files::BlockingCalls& files);
void hand_error_on(const std::string& message);

}  // namespace elastrun
