// SPDX-License-Identifier: Apache-2.0
#include "process/group_death_signal.hpp"

#include <algorithm>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

namespace elastrun::process {
namespace {

/// Workers, their pipes and their store's connections need descriptors more urgently.
bool leaves_enough(int fd) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) < limit.rlim_cur / 2;
}

bool arm(const UniqueFd& end, pid_t group) {
  return ::fcntl(end.get(), F_SETSIG, SIGKILL) == 0 && ::fcntl(end.get(), F_SETOWN, -group) == 0 &&
         ::fcntl(end.get(), F_SETFL, O_ASYNC | O_NONBLOCK) == 0;
}

/// Without it, closing the one end would be the event for the other.
void disarm(const UniqueFd& end) {
  if (end) ::fcntl(end.get(), F_SETFL, O_NONBLOCK);
}

}  // namespace

GroupDeathSignal::GroupDeathSignal(pid_t group) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return;
  }
  for (std::size_t i = 0; i < ends.size(); ++i) ends_[i].reset(ends[i]);
  // Both, because which of them is closed first is the kernel's affair.
  const bool done = leaves_enough(std::max(ends[0], ends[1])) &&
                    std::ranges::all_of(ends_, [&](const auto& end) { return arm(end, group); });
  if (done) return;
  std::ranges::for_each(ends_, disarm);
  for (auto& end : ends_) end.reset();
}

GroupDeathSignal::~GroupDeathSignal() {
  std::ranges::for_each(ends_, disarm);
}

}  // namespace elastrun::process
