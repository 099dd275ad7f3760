// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"

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

}  // namespace elastrun
