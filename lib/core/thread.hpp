// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <functional>

namespace elastrun {

/// Runs `body` on a thread of its own, to which no signal is delivered: signals are for the thread
/// of the loop. The thread is left to itself, so `body` must own all that it uses. Fails with Io if
/// there may be no more threads (pids.max of the cgroup, `ulimit -u`): that is no reason to end.
Status detach_thread(std::function<void()> body);

}  // namespace elastrun
