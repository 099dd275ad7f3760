// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/process_table.hpp"

#include <functional>
#include <vector>

namespace elastrun::workers {

/// Of the processes `job`, the workers with the pids `workers` included: the uppermost of those
/// that stay in the session of a worker but have left its process group, if a process of the group
/// does nothing but wait for them, or the group is empty. A signal for the group does not reach
/// them: below a script that catches SIGTERM, `timeout 1h python train.py` is such a one.
///
/// Spared are sessions of their own, and what the group may still use: a service of a trainer that
/// saves its checkpoint, which waits for a disk and not for a child. `waits` tells the two apart.
process::ProcessTable set_apart(const process::ProcessTable& job, const std::vector<pid_t>& workers,
                                const std::function<bool(const process::ProcessEntry&)>& waits);

}  // namespace elastrun::workers
