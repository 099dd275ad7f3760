// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// The interfaces of torch.distributed.elastic.timer, for launchers and workers of your own that
/// bring their own transport. The agent of elastrun has its own servers: timer/watchdog.hpp.
namespace elastrun::timer {

/// A countdown timer that is acquired or, with a negative expiration time, released.
struct TimerRequest {
  std::int64_t worker_id = 0;  // what client and server name a worker by; here its pid
  std::string scope_id;
  double expiration_time = 0;  // seconds since the epoch, by the wall clock
  bool operator==(const TimerRequest&) const = default;
};

/// A worker's side.
class TimerClient {
 public:
  virtual ~TimerClient() = default;
  virtual void acquire(const std::string& scope_id, double expiration_time) = 0;
  virtual void release(const std::string& scope_id) = 0;
};

class RequestQueue {
 public:
  virtual ~RequestQueue() = default;
  /// How many requests wait. Only get() makes them less.
  virtual std::size_t size() = 0;
  /// Up to `size` requests, in order; waits no longer than `timeout` for them.
  virtual std::vector<TimerRequest> get(std::size_t size, Duration timeout) = 0;
};

/// Reaps workers whose timers have expired. Each pass takes what the queue holds, without waiting.
class TimerServer {
 public:
  /// `queue` and `clock` must outlive it. A pass each `max_interval`, on the clock's loop.
  TimerServer(RequestQueue& queue, Clock& clock, Duration max_interval);
  virtual ~TimerServer() = default;
  TimerServer(const TimerServer&) = delete;
  TimerServer& operator=(const TimerServer&) = delete;

  void start();
  void stop();
  /// One pass: registers, reaps, and clears the timers of those reaped. A worker that cannot be
  /// reaped keeps its timers: the next pass tries again.
  void run_watchdog();

 protected:
  using Expired = std::vector<std::pair<std::int64_t, std::vector<TimerRequest>>>;  // by worker
  virtual void register_timers(const std::vector<TimerRequest>& requests) = 0;
  virtual void clear_timers(const std::set<std::int64_t>& worker_ids) = 0;
  /// Returns the timers whose expiration time is not after `deadline`.
  virtual Expired get_expired_timers(double deadline) const = 0;
  /// False: try again. An exception counts as true.
  virtual bool reap_worker(std::int64_t worker_id) = 0;

 private:
  RequestQueue& queue_;
  Clock& clock_;
  const Duration max_interval_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace elastrun::timer
