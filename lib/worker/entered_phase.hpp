// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "fork_lock.hpp"
#include "packet.hpp"
#include "written_page.hpp"

#include <chrono>
#include <string>
#include <string_view>

namespace elastrun::worker {
namespace detail {
/// What this process is about, and until when it may be, if that was said: else max().
struct EnteredPhase {
  using Clock = std::chrono::steady_clock;
  std::string name = "train";
  Clock::time_point until = Clock::time_point::max();
};

/// As it last said.
class LastPhase {
 public:
  constexpr LastPhase() = default;
  /// Returns the one before.
  EnteredPhase exchange(std::string_view name, EnteredPhase::Clock::time_point until) {
    count_forks();
    const auto taken = lock_.lock();
    if (taken == Lock::Taken::Not) return {};  // a signal has come within this very call
    if (taken == Lock::Taken::Stale) size_ = 0;
    EnteredPhase before;
    if (size_ > 0) before = {std::string(name_, size_), until_};
    size_ = cut(name, sizeof name_).copy(name_, sizeof name_);
    until_ = until;
    lock_.unlock();
    return before;
  }

 private:
  Lock lock_;  // for what follows
  std::size_t size_ = 0;
  char name_[256] = {};  // the agent takes no more
  EnteredPhase::Clock::time_point until_{};
};
inline LastPhase last_phase;

inline EnteredPhase enter_phase(std::string_view name, EnteredPhase::Clock::time_point until) {
  EnteredPhase before = last_phase.exchange(name, until);
  Page::instance().phase(name);
  if (!Channel::instance().configured()) return before;
  std::string packet = R"({"kind":"phase","phase":)" + worker::quoted(cut(name, 256));
  if (until != EnteredPhase::Clock::time_point::max()) {
    const std::chrono::duration<double> left = until - EnteredPhase::Clock::now();
    packet += R"(,"at_most":)" + number(left.count() > 0.001 ? left.count() : 0.001);
  }
  // One that is lost would make a hang of an evaluation, or hide one.
  Channel::instance().send_surely(packet + '}');
  return before;
}

/// 0, or an invalid time: not said.
inline EnteredPhase::Clock::time_point end_after(std::chrono::duration<double> at_most) {
  constexpr double kLongest = 1e9;  // seconds; more does not fit the clock's nanoseconds
  if (!(at_most.count() > 0)) return EnteredPhase::Clock::time_point::max();
  const std::chrono::duration<double> bounded(at_most.count() < kLongest ? at_most.count()
                                                                         : kLongest);
  return EnteredPhase::Clock::now() +
         std::chrono::duration_cast<EnteredPhase::Clock::duration>(bounded);
}
}  // namespace detail

/// From now on this process does something else than training steps ("eval"), and may take its
/// time for it: hang detection waits until it says "train". After `at_most` it waits no longer;
/// without it, after a time that it learns from earlier phases of that name (elastrun-timers(7)).
inline void phase(std::string_view name, std::chrono::duration<double> at_most = {}) {
  detail::enter_phase(name, detail::end_after(at_most));
}
/// The same until the end of a block, then what it was before, "train" mostly:
///
///     elastrun::worker::Phase eval("eval", std::chrono::minutes(30));
class Phase {
 public:
  explicit Phase(std::string_view name, std::chrono::duration<double> at_most = {})
      : before_(detail::enter_phase(name, detail::end_after(at_most))) {}
  ~Phase() { detail::enter_phase(before_.name, before_.until); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  const detail::EnteredPhase before_;
};

}  // namespace elastrun::worker
