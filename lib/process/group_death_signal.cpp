// SPDX-License-Identifier: Apache-2.0
#include "process/group_death_signal.hpp"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

/// Workers, their pipes and their store's connections need descriptors more urgently.
bool leaves_enough(int fd) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) < limit.rlim_cur / 2;
}

bool arm(const UniqueFd& end, pid_t group) {
  // A negative owner is a process group (fcntl(2)). O_ASYNC last: an event before the rest is set
  // would come as SIGIO, or to no process.
  return ::fcntl(end.get(), F_SETSIG, SIGKILL) == 0 && ::fcntl(end.get(), F_SETOWN, -group) == 0 &&
         ::fcntl(end.get(), F_SETFL, O_ASYNC | O_NONBLOCK) == 0;
}

}  // namespace

void GroupDeathSignal::arm(pid_t group) {
  std::array<int, 2> ends{};
  if (armed() || ::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return;
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  // Both, because which of them is closed first is the kernel's affair.
  const bool done = leaves_enough(std::max(ends[0], ends[1])) && process::arm(read_end_, group) &&
                    process::arm(write_end_, group);
  if (!done) disarm();
}

void GroupDeathSignal::disarm() {
  if (!armed()) return;
  // Else the close of the one would be the event for the other.
  ::fcntl(write_end_.get(), F_SETFL, O_NONBLOCK);
  read_end_.reset();
  write_end_.reset();
}

}  // namespace elastrun::process
