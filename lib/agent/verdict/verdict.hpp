// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "spec/job_spec.hpp"
#include "workers/diagnostics.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace elastrun::agent {

/// torchrun's failure block, character by character (torchrun-parity 4.9): title, other failures,
/// root cause. Tools read it, so it says nothing of our own.
std::string torchrun_report(const workers::Judgement& judgement, const std::string& entry_name,
                            const std::string& host);

/// The same for a person at a terminal, who sees one screen: its title, three failures with the
/// root cause first, and how many more there are. The rest is in our own verdict. Lines, ended.
std::string brief_report(const workers::Judgement& judgement, const std::string& entry_name);

/// torchrun's last line when a signal has ended it. The process that it names is the one that the
/// user started.
std::string signal_exception(int signal);

/// The failure's moment, as torchrun counts it: that of the error file, else that of the end.
WallTime time_of(const workers::Failure& failure);

/// What a person wants to know when a job has not ended well: who failed first and why in one
/// sentence, what is only a consequence, the last lines, where the log is, what to do next.
/// Several lines, each ended. Empty for a job that ended well and has nothing to tell.
/// `requeue_command` starts the job again, if there is such a command.
std::string verdict_text(const JobResult& result, const std::string& host,
                         const std::string& requeue_command = {});

/// For the verdict: that the job hung, and where its workers stood; empty if it did not in its last
/// attempt. What `told`, the sentence above it, says already is not said again. Pure.
std::string hang_verdict(const JobResult& result, std::string_view told);

/// The one sentence of it.
std::string verdict_sentence(const JobResult& result);

/// Name of the ending for machines: "succeeded", "workers_failed", ...
std::string_view ending_name(Ending::Kind kind);

/// With " (node n)" behind it, unless it names the node already.
std::string with_node(std::string text, const std::string& node);

/// How what is written at the end will be read.
struct Reader {
  bool looks_on = false;    // a person, at a terminal
  bool unicode = false;     // which can show block characters
  bool colour = false;      // and colours
  std::size_t columns = 0;  // of it; 0: lines may be as long as they are
};

/// The last line of all: the result, after how long, and why, short enough to be seen on any
/// screen. Before it, what is to be said of restarts. Each line ended.
std::string outcome_text(const JobResult& result, const spec::JobSpec& job, const Reader& reader);

/// The same reason as verdict_sentence, shorter: "rank 1: ValueError: boom".
std::string reason_text(const JobResult& result);

/// Where the time of the job went, if workers ever ran, and why each restart was needed. Each line
/// ended; empty if there is nothing to tell.
std::string account_text(const JobResult& result, const spec::JobSpec& job, const Reader& reader);

}  // namespace elastrun::agent
