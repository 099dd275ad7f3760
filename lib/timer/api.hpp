// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <source_location>
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

/// configure() and expires() of torch.distributed.elastic.timer, for clients of any kind. Below the
/// agent of elastrun a worker needs neither: elastrun::worker::Expires tells it by itself.

/// Whom `Expires` talks to from now on, in all threads; null: no client.
void configure(std::shared_ptr<TimerClient> client);

/// Has this process reaped, as its client does that, unless this object has ended `after` seconds
/// from now. `scope` names the timer; empty: file and line of the caller.
class Expires {
 public:
  /// `client` null: that of configure(). Throws std::runtime_error if there is none, and what the
  /// client throws.
  explicit Expires(double after, std::string scope = {}, std::shared_ptr<TimerClient> client = {},
                   const std::source_location& caller = std::source_location::current());
  /// A release that fails is logged: the block has ended well all the same.
  ~Expires();
  Expires(const Expires&) = delete;
  Expires& operator=(const Expires&) = delete;

 private:
  const std::shared_ptr<TimerClient> client_;
  const std::string scope_;
};

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
