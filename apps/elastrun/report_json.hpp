// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/job_result.hpp"
#include "core/error.hpp"
#include "spec/job_spec.hpp"

#include <string>

namespace elastrun {

/// The report for machines: one JSON object (elastrun(1), REPORT FILE), ended by a newline.
std::string report_json(const agent::JobResult& result, const spec::JobSpec& spec, int exit_code);

/// Writes it, replacing an older one at once and whole. Fails with Io.
Status write_report(const std::string& path, const std::string& text);

}  // namespace elastrun
