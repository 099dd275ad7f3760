// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/job_result.hpp"
#include "core/error.hpp"
#include "spec/job_spec.hpp"

#include <string>

namespace elastrun {

/// The report for machines: one JSON object (elastrun(1), REPORT FILE), ended by a newline.
std::string report_json(const agent::JobResult& result, const spec::JobSpec& spec, int exit_code);

/// What will go wrong when a report is written to `path`, as a sentence with a remedy; empty if
/// nothing is to be feared. Asked before the job starts, because afterwards is too late.
std::string trouble_with_report(const std::string& path);

/// Writes it, replacing an older one at once and whole. Fails with Io.
Status write_report(const std::string& path, const std::string& text);

}  // namespace elastrun
