// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

/// torch's wait counters (c10/util/WaitCounter.h): how often and how long something was waited for.
namespace elastrun::telemetry::monitor {

struct WaitCounter {
  std::atomic<std::int64_t> active{0}, calls{0};         // calls: begun
  std::atomic<std::int64_t> total_us{0}, longest_us{0};  // of those that have ended
};

/// One wait, from here to stop() or to its end.
class WaitGuard {
 public:
  explicit WaitGuard(WaitCounter& counter);
  WaitGuard(WaitGuard&& other) noexcept;
  WaitGuard& operator=(WaitGuard&&) = delete;
  ~WaitGuard() { stop(); }
  void stop();

 private:
  WaitCounter* counter_;
  std::chrono::steady_clock::time_point begin_;
};

/// The counter of that key, made on first use and never destroyed. Looking it up takes a lock: keep
/// the reference where it is hot.
WaitCounter& wait_counter(std::string_view key);
/// JSON: key -> {"active_count", "total_calls", "total_time_us", "max_time_us"}, what torch's
/// handler `wait_counter_values` answers.
std::string wait_counter_values();

}  // namespace elastrun::telemetry::monitor
