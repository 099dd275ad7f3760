// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <functional>

namespace elastrun {

/// Runs `body` on a new, detached thread with all signals blocked: they are for the loop's thread.
/// So `body` must own all that it uses. Fails with Io if the limit of threads is reached (pids.max
/// of the cgroup, `ulimit -u`): callers go on without.
Status detach_thread(std::function<void()> body);

}  // namespace elastrun
