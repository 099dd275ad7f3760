// SPDX-License-Identifier: Apache-2.0
#include "exit_code.hpp"

namespace elastrun {

int exit_code(const agent::JobResult& result, bool of_worker) {
  if (result.succeeded()) return 0;
  if (result.ending.requeue) return kExitRequeue;
  if (!of_worker) return kExitFailed;
  const bool of_a_worker = result.culprit && result.culprit->is_worker();
  const int code = of_a_worker ? result.culprit->cause.exit_code : 0;
  if (code == 0) return kExitFailed;
  return code > 0 ? code : 128 - code;
}

}  // namespace elastrun
