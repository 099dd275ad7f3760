// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <doctest/doctest.h>
#include <pthread.h>

namespace elastrun::test {

/// While it lives no thread can be made, as when pids.max is reached (which root is exempt from,
/// and so a limit of processes would not do): none gets a stack of this size.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    ::pthread_attr_init(&huge);
    REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 60) == 0);
    REQUIRE(::pthread_setattr_default_np(&huge) == 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace elastrun::test
