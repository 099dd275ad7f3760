// SPDX-License-Identifier: Apache-2.0
#include "exit_code.hpp"

namespace elastrun {

int exit_code(const agent::JobResult& result, bool of_worker) {
  using Kind = agent::Ending::Kind;
  if (result.succeeded()) return 0;
  if (result.ending.requeue) return kExitRequeue;
  if (!of_worker) return kExitFailed;
  if (result.ending.kind == Kind::WorkersFailed && result.judgement) {
    const int code = result.judgement->first().status.as_shell();
    return code != 0 ? code : kExitFailed;
  }
  if (result.ending.kind == Kind::JobFailed && result.ending.cause.exit_code != 0) {
    const int code = result.ending.cause.exit_code;
    return code > 0 ? code : 128 - code;
  }
  return kExitFailed;
}

}  // namespace elastrun
