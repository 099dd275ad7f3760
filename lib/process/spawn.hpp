// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "process/launcher.hpp"

#include <sys/types.h>

namespace elastrun::process {

/// A process that has reached its program.
struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd;
};

/// Makes processes whose cost does not grow with our memory: the child borrows our address space
/// until execve(2), as after vfork(2), but on a stack of its own, so that it cannot overwrite the
/// frames to which we return.
class Spawner {
 public:
  Spawner();
  ~Spawner();
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  /// Returns when the child has become its program, or with Spawn and the reason; a child that did
  /// not get that far is reaped already. Whoever has the result reaps the child.
  Result<Spawned> spawn(const LaunchRequest& request);

 private:
  void* stack_ = nullptr;
};

}  // namespace elastrun::process
