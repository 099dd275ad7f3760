// SPDX-License-Identifier: Apache-2.0
#include "timer/deadlines.hpp"

#include <algorithm>

namespace elastrun::timer {

const Expired& ExpiredWorker::reason() const {
  const auto found =
      std::ranges::find_if(timers, [](const Expired& timer) { return timer.signal > 0; });
  return found == timers.end() ? timers.front() : *found;
}

void Deadlines::erase(std::map<Key, Timer>::iterator timer) {
  // Several timers may expire in the same nanosecond, so the expiry alone names no entry.
  auto [entry, end] = by_expiry_.equal_range(timer->second.expiry);
  entry = std::find_if(entry, end, [&](const auto& one) { return one.second == timer->first; });
  by_expiry_.erase(entry);
  const auto count = count_.find(std::get<0>(timer->first));
  if (--count->second == 0) count_.erase(count);
  timers_.erase(timer);
}

bool Deadlines::apply(const Request& request) {
  const Key key{request.worker, request.scope, request.number};
  // As with torch, the same scope again replaces its timer.
  if (const auto old = timers_.find(key); old != timers_.end()) erase(old);
  if (!request.expiry) return true;
  auto& count = count_[request.worker];
  // A script that never releases must not fill the agent's memory.
  if (count >= kMostOfWorker) return false;
  ++count;
  timers_.emplace(key, Timer{*request.expiry, request.signal, request.armed});
  by_expiry_.emplace(*request.expiry, key);
  return true;
}

std::optional<TimePoint> Deadlines::next() const {
  if (by_expiry_.empty()) return std::nullopt;
  return by_expiry_.begin()->first;
}

std::vector<ExpiredWorker> Deadlines::take_expired(TimePoint now) {
  std::vector<ExpiredWorker> workers;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const auto timer = timers_.find(by_expiry_.begin()->second);
    const auto& [pid, scope, number] = timer->first;
    auto worker = std::ranges::find(workers, pid, &ExpiredWorker::worker);
    if (worker == workers.end()) worker = workers.insert(worker, {pid, {}});
    const auto& [expiry, signal, armed] = timer->second;
    worker->timers.push_back({scope, expiry, signal, armed});
    erase(timer);
  }
  // A timer that only tells ends no process, whose other timers go on.
  for (const auto& worker : workers) {
    if (worker.signal() > 0) forget(worker.worker);
  }
  return workers;
}

void Deadlines::forget(std::int64_t worker) {
  // The least key that this worker can have: the empty scope and number 0.
  auto timer = timers_.lower_bound({worker, {}, 0});
  while (timer != timers_.end() && std::get<0>(timer->first) == worker) erase(timer++);
}

std::size_t Deadlines::size() const {
  return timers_.size();
}

bool Deadlines::has(std::int64_t worker, const std::string& scope, std::uint64_t number) const {
  return timers_.contains({worker, scope, number});
}

}  // namespace elastrun::timer
