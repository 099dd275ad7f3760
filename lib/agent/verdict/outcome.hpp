// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "spec/job_spec.hpp"

#include <cstddef>
#include <string>

namespace elastrun::agent {

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
