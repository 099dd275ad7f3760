// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "process/launcher.hpp"

#include <boost/asio/io_context.hpp>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// A process that has reached its program.
struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd;
};

/// Starts a process by Boost.Process, at a cost that does not grow with our memory: the child
/// borrows our address space until execve(2), as after vfork(2).
/// Returns when the child has become its program, or with Spawn and the reason; a child that did
/// not get that far is reaped already. The owner of the result reaps the child.
Result<Spawned> spawn(boost::asio::io_context& io, const LaunchRequest& request);

/// From now on each child has these descriptors of ours, above 2, under the same numbers: what the
/// program that started this one has given it for its workers. Not while one is being started.
void let_children_inherit(std::vector<int> descriptors);

}  // namespace elastrun::process
