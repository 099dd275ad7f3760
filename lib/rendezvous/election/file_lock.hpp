// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <string>

namespace elastrun::rendezvous {

/// Takes an exclusive lock on the file of that name, which is made if need be, and writes into it
/// who has it. The lock is held while the result lives; the kernel gives it back when the process
/// dies. Never waits: fails with Io at once if another process has it, and says which one and what
/// to do. Why a lock, rather than a file that is made with O_EXCL and taken over when it is old: a
/// process that was paused while it had that file would go on, and overwrite what its successor
/// wrote. A lock outlives such a pause. The price: over NFS before version 4 that of a machine that
/// has died within it, for milliseconds of each renewal, stays until the machine is up again.
Result<UniqueFd> lock_file(const std::string& name);

}  // namespace elastrun::rendezvous
