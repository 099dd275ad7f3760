// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "export/metrics_sink.hpp"
#include "spec/job_spec.hpp"

#include <string>
#include <vector>

namespace elastrun {

/// The report for machines: one JSON object (elastrun(1), REPORT FILE), ended by a newline.
/// `sinks`: what became of what those of --metrics were given.
std::string report_json(const agent::JobResult& result, const spec::JobSpec& spec, int exit_code,
                        const std::vector<exporter::SinkAccount>& sinks = {});

/// Returns what will go wrong when a report is written to `path`, as a sentence with a remedy;
/// empty if nothing will. Ask before the job starts, because afterwards is too late.
std::string trouble_with_report(const std::string& path);

/// Returns the path of this node's report: --report as it is for a job of one node and for the node
/// of group rank 0; out/report.node3.json for group rank 3, so that nodes with one file system have
/// one file each; with the host's name instead for a node that never was in a round.
std::string report_path(const agent::JobResult& result, const spec::JobSpec& spec);

}  // namespace elastrun
