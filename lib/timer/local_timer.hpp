// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/unique_fd.hpp"
#include "timer/api.hpp"

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace elastrun::timer {

/// A queue between a process and the workers that it forks: make it before them.
class LocalQueue final : public RequestQueue {
 public:
  LocalQueue();
  std::size_t size() override;
  std::vector<TimerRequest> get(std::size_t size, Duration timeout) override;
  /// Never waits: false if the queue is full, or has lost its reader.
  bool put(const TimerRequest& request);

 private:
  void take_in();

  UniqueFd reading_, writing_;
  std::deque<TimerRequest> taken_in_;
};

/// Sends the requests of the calling process. One that finds the queue full is lost.
class LocalTimerClient final : public TimerClient {
 public:
  /// Borrows the queue.
  explicit LocalTimerClient(LocalQueue& queue) : queue_(queue) {}
  void acquire(const std::string& scope_id, double expiration_time) override;
  void release(const std::string& scope_id) override;

 private:
  LocalQueue& queue_;
};

/// Kills workers on this machine, by SIGKILL; a pid that is gone counts as reaped.
class LocalTimerServer : public TimerServer {
 public:
  LocalTimerServer(LocalQueue& queue, Clock& clock,
                   Duration max_interval = std::chrono::seconds(60))
      : TimerServer(queue, clock, max_interval) {}
  std::size_t timers() const { return timers_.size(); }

 protected:
  void register_timers(const std::vector<TimerRequest>& requests) override;
  void clear_timers(const std::set<std::int64_t>& worker_ids) override;
  Expired get_expired_timers(double deadline) const override;
  bool reap_worker(std::int64_t worker_id) override;

 private:
  std::map<std::pair<std::int64_t, std::string>, TimerRequest> timers_;
};

}  // namespace elastrun::timer
