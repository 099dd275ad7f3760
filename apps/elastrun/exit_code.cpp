// SPDX-License-Identifier: Apache-2.0
#include "exit_code.hpp"

namespace elastrun {

int exit_code(const agent::JobResult& result, bool of_worker) {
  using Kind = agent::Ending::Kind;
  if (result.succeeded()) return 0;
  if (result.ending.requeue) return kExitRequeue;
  if (!of_worker) return kExitFailed;
  // What all nodes have agreed on counts for each of them.
  const bool agreed = result.round && result.round->group_world_size() > 1;
  const auto kind = result.ending.kind;
  const bool failed = kind == Kind::JobFailed || kind == Kind::WorkersFailed;
  if (const int code = result.ending.cause.exit_code;
      failed && code != 0 && (agreed || kind == Kind::JobFailed)) {
    return code > 0 ? code : 128 - code;
  }
  if (kind == Kind::WorkersFailed && result.judgement) {
    const int code = result.judgement->first().status.as_shell();
    return code != 0 ? code : kExitFailed;
  }
  return kExitFailed;
}

}  // namespace elastrun
