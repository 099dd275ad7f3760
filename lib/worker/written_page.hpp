// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::worker {
/// Where the numbers of a page and of a series in it are, in bytes, and sizes. The agent reads by
/// them, too; the Python package has its own (elastrun-protocol(7)).
struct PageLayout {
  static constexpr std::size_t kWriter = 16, kCount = 20, kLock = 24, kStep = 32, kStepAt = 40,
                               kPhase = 48, kPhaseAt = 80, kRefused = 88, kLooked = 96,
                               kSaveAt = 104, kImported = 112, kSeries = 128, kPhaseSize = 32;
  static constexpr std::size_t kEntry = 128, kValue = 8, kValues = 16, kNameSize = 24, kName = 28;
};

/// The page that this worker shares with its agent (ELASTRUN_PAGE; elastrun-protocol(7)): the last
/// step, phase and values, which the agent reads also when this process hangs or has been killed.
/// Writing is a few stores and no system call. For all threads; a forked child writes nothing.
class Page : PageLayout {
 public:
  constexpr Page() = default;
  static Page& instance();

  void step(std::int64_t number) {
    if (number >= 0 && mapped()) write_timed(kStepAt, [&] { put_word(kStep, number); });
  }
  /// At most 32 bytes of it.
  void phase(std::string_view name) {
    if (!mapped()) return;
    write_timed(kPhaseAt, [&] {
      const auto shown = detail::cut(name, kPhaseSize);
      std::memset(bytes_ + kPhase, 0, kPhaseSize);
      std::memcpy(bytes_ + kPhase, shown.data(), shown.size());
    });
  }
  /// Whether the agent has asked to save after that step; below 0: after any.
  bool should_save(std::int64_t number) {
    if (!mapped()) return false;
    if (__atomic_load_n(word(kLooked), __ATOMIC_RELAXED) == 0) {
      // From now on the agent sends no signal to make this process save.
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      put_word(kLooked, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    }
    step(number);  // from which the agent knows a step that no rank has done yet
    const auto order = __atomic_load_n(word(kSaveAt), __ATOMIC_RELAXED);
    return order == 1 || (order > 1 && (number < 0 || number >= order - 2));
  }
  /// Where the values of that series go: 0 if the page is full, or there is none.
  std::size_t series(std::string_view group, std::string_view name) {
    if (!mapped()) return 0;
    std::string key(group);
    key.append(1, '\0').append(name);
    if (key.size() > kEntry - kName) key.resize(kEntry - kName);
    const detail::Turn turn(adding_);
    return turn ? find_or_add(key) : 0;
  }
  void put(std::size_t place, double value) {
    if (place == 0 || !mapped()) return;
    const auto lock = begin(place);
    std::int64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    put_word(place + kValue, bits);
    __atomic_fetch_add(word(place + kValues), 1, __ATOMIC_RELAXED);
    end(place, lock);
  }

 private:
  std::int64_t* word(std::size_t at) { return reinterpret_cast<std::int64_t*>(bytes_ + at); }
  std::uint32_t* half(std::size_t at) { return reinterpret_cast<std::uint32_t*>(bytes_ + at); }
  void put_word(std::size_t at, std::int64_t value) {
    __atomic_store_n(word(at), value, __ATOMIC_RELAXED);
  }
  /// Of two threads at the same place both leave the lock even.
  std::int64_t begin(std::size_t at) {
    const auto lock = __atomic_load_n(word(at), __ATOMIC_RELAXED) | 1;
    put_word(at, lock);
    std::atomic_thread_fence(std::memory_order_release);
    return lock;
  }
  void end(std::size_t at, std::int64_t lock) {
    __atomic_store_n(word(at), lock + 1, __ATOMIC_RELEASE);
  }
  template <class Write>
  void write_timed(std::size_t at, Write write) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto lock = begin(kLock);
    write();
    put_word(at, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    end(kLock, lock);
  }
  std::size_t find_or_add(const std::string& key) {
    const std::size_t count = *half(kCount);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = kSeries + i * kEntry;
      if (at + kEntry > size_) return 0;
      const bool same = *half(at + kNameSize) == key.size() &&
                        std::memcmp(bytes_ + at + kName, key.data(), key.size()) == 0;
      if (same) return at;
    }
    const std::size_t at = kSeries + count * kEntry;
    if (at + kEntry > size_) return 0;
    std::memset(bytes_ + at, 0, kEntry);
    std::memcpy(bytes_ + at + kName, key.data(), key.size());
    *half(at + kNameSize) = static_cast<std::uint32_t>(key.size());
    __atomic_store_n(half(kCount), static_cast<std::uint32_t>(count + 1), __ATOMIC_RELEASE);
    return at;
  }

  enum class State { Unknown, Looking, None, Mapped };
  bool mapped() {
    const State state = state_.load(std::memory_order_acquire);
    if (state == State::Unknown) look();
    return state_.load(std::memory_order_acquire) == State::Mapped &&
           generation_ == detail::generation.load(std::memory_order_relaxed);
  }
  void look() {
    State unknown = State::Unknown;
    if (!state_.compare_exchange_strong(unknown, State::Looking)) return;
    detail::count_forks();
    generation_ = detail::generation.load(std::memory_order_relaxed);
    const char* path = std::getenv("ELASTRUN_PAGE");
    const bool found = path != nullptr && *path != '\0' && map(path);
    state_.store(found ? State::Mapped : State::None, std::memory_order_release);
  }
  bool map(const char* path) {
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    struct stat info {};
    if (fd < 0) return false;
    void* made = MAP_FAILED;
    if (::fstat(fd, &info) == 0 && info.st_size >= static_cast<off_t>(kSeries)) {
      size_ = static_cast<std::size_t>(info.st_size);
      made = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    ::close(fd);
    if (made == MAP_FAILED) return false;
    bytes_ = static_cast<char*>(made);
    const auto self = static_cast<std::uint32_t>(::getpid());
    std::uint32_t writer = 0;
    const auto take = [&] {
      return __atomic_compare_exchange_n(half(kWriter), &writer, self, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE);
    };
    // That of a process that has ended, a script before the training say, is free again.
    const auto has_ended = [&] {
      return ::kill(static_cast<pid_t>(writer), 0) != 0 && errno == ESRCH;
    };
    const bool ours = std::memcmp(bytes_, "elastrun", 8) == 0 && *half(8) == 1 &&
                      *half(12) == size_ && (take() || writer == self || (has_ended() && take()));
    if (ours) {
      *half(kCount) = 0;  // after exec(2) the same process starts over
    } else {
      ::munmap(made, size_);
    }
    return ours;
  }

  std::atomic<State> state_{State::Unknown};
  detail::Lock adding_;
  std::uint32_t generation_ = 0;
  char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

namespace detail {
inline Page page;
}

inline Page& Page::instance() {
  return detail::page;
}

}  // namespace elastrun::worker
