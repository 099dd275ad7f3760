// SPDX-License-Identifier: Apache-2.0
#include "telemetry/wait_counter.hpp"

#include "core/json.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace elastrun::telemetry::monitor {
namespace {

struct WaitCounters {
  std::mutex mutex;
  std::map<std::string, WaitCounter, std::less<>> by_key;
};
WaitCounters& wait_counters() {
  static auto* const counters = new WaitCounters;
  return *counters;
}

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

WaitGuard::WaitGuard(WaitCounter& counter)
    : counter_(&counter), begin_(std::chrono::steady_clock::now()) {
  counter.active.fetch_add(1, kRelaxed);
  counter.calls.fetch_add(1, kRelaxed);
}

WaitGuard::WaitGuard(WaitGuard&& other) noexcept
    : counter_(std::exchange(other.counter_, nullptr)), begin_(other.begin_) {}

void WaitGuard::stop() {
  WaitCounter* const counter = std::exchange(counter_, nullptr);
  if (counter == nullptr) return;
  const std::int64_t took = std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::steady_clock::now() - begin_)
                                .count();
  counter->active.fetch_sub(1, kRelaxed);
  counter->total_us.fetch_add(took, kRelaxed);
  auto longest = counter->longest_us.load(kRelaxed);
  while (took > longest && !counter->longest_us.compare_exchange_weak(longest, took, kRelaxed)) {
  }
}

WaitCounter& wait_counter(std::string_view key) {
  auto& counters = wait_counters();
  const std::lock_guard lock(counters.mutex);
  const auto found = counters.by_key.find(key);
  return found != counters.by_key.end() ? found->second : counters.by_key[std::string(key)];
}

std::string wait_counter_values() {
  auto& counters = wait_counters();
  const std::lock_guard lock(counters.mutex);
  json::object all;
  for (const auto& [key, counter] : counters.by_key) {
    json::object& one = all[key].emplace_object();
    one["active_count"] = counter.active.load(kRelaxed);
    one["total_calls"] = counter.calls.load(kRelaxed);
    one["total_time_us"] = counter.total_us.load(kRelaxed);
    one["max_time_us"] = counter.longest_us.load(kRelaxed);
  }
  return json::serialize(all);
}

}  // namespace elastrun::telemetry::monitor
