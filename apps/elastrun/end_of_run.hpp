// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "export/metrics_sink.hpp"
#include "launcher/job_run.hpp"
#include "spec/job_spec.hpp"

#include <string>
#include <vector>

namespace elastrun {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
/// EX_TEMPFAIL of sysexits.h: nothing is wrong with the job, start it again (requeue).
constexpr int kExitRequeue = 75;

/// Starting it again would end the same way: do not requeue.
constexpr int kExitHopeless = 93;

/// The table EXIT STATUS of elastrun(1). `of_worker`: --exit-code worker, the culprit's own code,
/// 128 + signal if a signal ended it.
inline int exit_code(const agent::JobResult& result, bool of_worker) {
  if (result.succeeded()) return 0;
  if (result.ending.requeue) return kExitRequeue;
  if (result.ending.cause.hopeless) return kExitHopeless;
  if (result.ending.cause.misuse) return kExitUsage;
  if (!of_worker) return kExitFailed;
  const bool of_a_worker = result.culprit && result.culprit->is_worker();
  const int code = of_a_worker ? result.culprit->cause.exit_code : 0;
  if (code == 0) return kExitFailed;
  return code > 0 ? code : 128 - code;
}

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

/// Leaves the failure for the program that started us: in our own TORCHELASTIC_ERROR_FILE, if there
/// is one, as torchrun does.
void hand_error_on(const std::string& message);

/// Reports to people, machines and the program that started us; cleans up. The exit code.
int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, agent::JobRun& run);

}  // namespace elastrun
