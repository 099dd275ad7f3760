// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
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
class LocalQueue {
 public:
  LocalQueue();
  /// How many requests wait. Only get() makes them less.
  std::size_t size();
  /// Up to `size` requests, in order; waits no longer than `timeout` for them.
  std::vector<TimerRequest> get(std::size_t size, Duration timeout);
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

/// Reaps workers on this machine whose timers have expired: kills them by SIGKILL; a pid that is
/// gone counts as reaped. Each pass takes what the queue holds, without waiting. Servers of other
/// kinds override how requests are kept and workers end.
class LocalTimerServer {
 public:
  /// `queue` and `clock` must outlive it. A pass each `max_interval`, on the clock's loop.
  LocalTimerServer(LocalQueue& queue, Clock& clock,
                   Duration max_interval = std::chrono::seconds(60));
  virtual ~LocalTimerServer() = default;
  LocalTimerServer(const LocalTimerServer&) = delete;
  LocalTimerServer& operator=(const LocalTimerServer&) = delete;
  void start();
  void stop();
  /// One pass: registers, reaps, and clears the timers of those reaped. A worker that cannot be
  /// reaped keeps its timers: the next pass tries again.
  void run_watchdog();
  std::size_t timers() const { return timers_.size(); }

 protected:
  virtual void register_timers(const std::vector<TimerRequest>& requests);
  /// False: try again. An exception counts as true.
  virtual bool reap_worker(std::int64_t worker_id);

 private:
  LocalQueue& queue_;
  Clock& clock_;
  const Duration max_interval_;
  std::unique_ptr<Alarm> alarm_;
  std::map<std::pair<std::int64_t, std::string>, TimerRequest> timers_;
};

}  // namespace elastrun::timer
