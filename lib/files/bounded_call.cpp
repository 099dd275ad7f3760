// SPDX-License-Identifier: Apache-2.0
#include "files/bounded_call.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "core/thread.hpp"

#include <algorithm>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>

namespace elastrun::files {
namespace {

constexpr Duration kUnsaid = std::chrono::seconds(2);  // a wait that needs no words

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;
};

}  // namespace

Status wait_for(const std::string& what, Duration limit, std::function<void()> call) {
  const auto shared = std::make_shared<Shared>();
  // Both are held by the thread as well: after the limit we return, and it may come back later.
  const auto made = detach_thread([shared, call] {
    call();
    const std::lock_guard lock(shared->mutex);
    shared->returned = true;
    shared->changed.notify_one();
  });
  if (!made) {
    call();
    return {};
  }
  std::unique_lock lock(shared->mutex);
  // The flag, and not the notice alone, ends the wait: it may come before the wait begins, and
  // condition variables wake without one (pthread_cond_wait(3)).
  const auto returned = [&] { return shared->returned; };
  const auto unsaid = std::min(kUnsaid, limit);
  if (shared->changed.wait_for(lock, unsaid, returned)) return {};
  if (limit > unsaid) {
    log::warning("files", "waiting for {}: its file system does not answer; up to {}", what,
                 format_duration(limit));
    if (shared->changed.wait_for(lock, limit - unsaid, returned)) return {};
  }
  return fail(Code::Io,
              fmt::format("{}: its file system has not answered within {}; choose another place",
                          what, format_duration(limit)));
}

}  // namespace elastrun::files
