// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <utility>

namespace elastrun::worker {
namespace detail {
/// How often this process and those that it was forked from were forked: tells a child what it has
/// from its parent.
inline std::atomic<std::uint32_t> generation{1};

/// Held for a few instructions, or a send(2) that waits for its turn alone. That of a thread which
/// this process does not have, because it was forked meanwhile, counts as free.
class Lock {
 public:
  enum class Taken {
    Not,    // this thread has it: a signal handler has come in between
    Ours,   // what it guards is as this process has left it
    Stale,  // what it guards is unset, or was left by another process
  };
  constexpr Lock() = default;
  Taken lock() {
    const auto own = generation.load(std::memory_order_relaxed);
    const std::uint64_t self = ((std::uint64_t)::pthread_self() << 16) | (own & 0xffff);
    for (;;) {
      auto found = holder_.load(std::memory_order_relaxed);
      if (found == self) return Taken::Not;
      const bool free = found == 0 || (found & 0xffff) != (own & 0xffff);
      if (free && holder_.compare_exchange_weak(found, self, std::memory_order_acquire)) break;
      if (!free) ::sched_yield();
    }
    return std::exchange(last_, own) == own ? Taken::Ours : Taken::Stale;
  }
  void unlock() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> holder_{0};  // its thread and generation, in one: both at once
  std::uint32_t last_ = 0;                // generation of the last one, who may have gone
};

/// For what threads share and seldom change: the list of Stats, sampling. fork(2) waits for it, so
/// that a child finds these whole.
inline Lock shared_lock;
inline bool held_for_fork = false;

inline void count_forks() {
  static std::atomic<bool> counted{false};
  if (counted.load(std::memory_order_relaxed) || counted.exchange(true)) return;
  ::pthread_atfork([] { held_for_fork = shared_lock.lock() != Lock::Taken::Not; },
                   [] {
                     if (held_for_fork) shared_lock.unlock();
                   },
                   // In the child it counts as free, as its holder's generation has passed.
                   [] { generation.fetch_add(1, std::memory_order_relaxed); });
}

/// Has that lock until the end of its block. False: this thread has it, as a signal handler has
/// come in between.
class Shared {
 public:
  Shared() {
    count_forks();
    taken_ = shared_lock.lock() != Lock::Taken::Not;
  }
  ~Shared() {
    if (taken_) shared_lock.unlock();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  explicit operator bool() const { return taken_; }

 private:
  bool taken_ = false;
};
}  // namespace detail

}  // namespace elastrun::worker
