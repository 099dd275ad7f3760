// SPDX-License-Identifier: Apache-2.0
#include "core/thread.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <system_error>
#include <thread>
#include <utility>

namespace elastrun {

Status detach_thread(std::function<void()> body) {
  Status made;
  sigset_t all, before;
  // A thread begins with the mask of its maker, and signals are for the loop's thread alone.
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error& thrown) {
    made = fail(Code::Io, fmt::format("cannot make a thread: {} (see pids.max of the cgroup and "
                                      "\"ulimit -u\")",
                                      thrown.code().message()));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

}  // namespace elastrun
