// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "files/blocking_calls.hpp"
#include "spec/job_spec.hpp"

#include <string>

namespace elastrun {

/// What stderr gets when the job is over. After a failure: torchrun's block, our verdict, the
/// summary. After a success nothing, unless the job was restarted, was long, or a person looks on:
/// then the summary, as --summary wants it: the whole of it on the node with group rank 0 only.
std::string report_text(const agent::JobResult& result, const spec::JobSpec& spec,
                        bool person_looks_on);

/// Leaves the failure for the program that started us: in our own TORCHELASTIC_ERROR_FILE, if there
/// is one, as torchrun does. With `files`, by that thread.
void hand_error_on(const agent::JobResult& result, files::BlockingCalls& files);
void hand_error_on(const std::string& message);

}  // namespace elastrun
