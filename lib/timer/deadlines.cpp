// SPDX-License-Identifier: Apache-2.0
#include "timer/deadlines.hpp"

#include <algorithm>

namespace elastrun::timer {

int ExpiredWorker::signal() const {
  const auto found = std::find_if(timers.begin(), timers.end(),
                                  [](const Expired& timer) { return timer.signal > 0; });
  return found == timers.end() ? 0 : found->signal;
}

void Deadlines::erase(std::map<Key, Timer>::iterator timer) {
  auto [entry, end] = by_expiry_.equal_range(timer->second.expiry);
  entry = std::find_if(entry, end, [&](const auto& one) { return one.second == timer->first; });
  by_expiry_.erase(entry);
  timers_.erase(timer);
}

void Deadlines::apply(const Request& request) {
  const Key key{request.worker, request.scope};
  if (const auto old = timers_.find(key); old != timers_.end()) erase(old);
  if (!request.expiry) return;
  timers_.emplace(key, Timer{*request.expiry, request.signal});
  by_expiry_.emplace(*request.expiry, key);
}

std::optional<TimePoint> Deadlines::next() const {
  if (by_expiry_.empty()) return std::nullopt;
  return by_expiry_.begin()->first;
}

std::vector<ExpiredWorker> Deadlines::take_expired(TimePoint now) {
  std::vector<ExpiredWorker> workers;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const auto [expiry, key] = *by_expiry_.begin();
    const auto timer = timers_.find(key);
    auto worker = std::find_if(workers.begin(), workers.end(),
                               [&](const ExpiredWorker& one) { return one.worker == key.first; });
    if (worker == workers.end()) worker = workers.insert(worker, {key.first, {}});
    worker->timers.push_back({key.second, expiry, timer->second.signal});
    erase(timer);
  }
  for (const auto& worker : workers) forget(worker.worker);
  return workers;
}

void Deadlines::forget(std::int64_t worker) {
  auto timer = timers_.lower_bound({worker, {}});
  while (timer != timers_.end() && timer->first.first == worker) erase(timer++);
}

void Deadlines::postpone(Duration by) {
  by_expiry_.clear();
  for (auto& [key, timer] : timers_) {
    timer.expiry += by;
    by_expiry_.emplace(timer.expiry, key);
  }
}

std::size_t Deadlines::size() const {
  return timers_.size();
}

bool Deadlines::has(std::int64_t worker, const std::string& scope) const {
  return timers_.contains({worker, scope});
}

}  // namespace elastrun::timer
