// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "timer/watchdog.hpp"

#include <boost/asio/io_context.hpp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

/// The interfaces of torch.distributed.elastic.timer, for launchers and workers of your own: with a
/// transport of yours, a queue to own children, or a FIFO. The agent has its own server:
/// timer/watchdog.hpp.
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

/// The client that `Expires` talks to from now on, in all threads; null: none. Below the agent a
/// worker needs none: elastrun::worker::Expires tells the agent by itself.
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
  UniqueFd reading_, writing_;
  std::vector<TimerRequest> taken_in_;
};

/// Sends the requests of the calling process. One that finds the queue full is lost.
class LocalTimerClient final : public TimerClient {
 public:
  /// Borrows the queue.
  explicit LocalTimerClient(LocalQueue& queue) : queue_(queue) {}
  void acquire(const std::string& scope_id, double expiration_time) override {
    queue_.put({::getpid(), scope_id, expiration_time});
  }
  void release(const std::string& scope_id) override { acquire(scope_id, -1); }

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
                   Duration max_interval = std::chrono::seconds(60))
      : queue_(queue), clock_(clock), max_interval_(max_interval), alarm_(clock.make_alarm()) {}
  virtual ~LocalTimerServer() = default;
  LocalTimerServer(const LocalTimerServer&) = delete;
  LocalTimerServer& operator=(const LocalTimerServer&) = delete;
  void start();
  void stop() { alarm_->disarm(); }
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
  std::map<std::pair<std::int64_t, std::string>, double> timers_;  // worker, scope: expiration
};

/// A request over a FIFO, in the words of torch's clients and servers. `signal`: what ends the
/// process `worker_id`; 0 or less: nothing does.
struct FileTimerRequest : TimerRequest {
  int signal = 0;
  /// One line, without its end.
  std::string to_json() const;
};

/// Sends the requests of the calling process into the FIFO that a server has made: this one's,
/// torch's, or that of the elastrun agent ($TORCHELASTIC_TIMER_FILE).
class FileTimerClient final : public TimerClient {
 public:
  explicit FileTimerClient(std::string file_path, int signal = SIGKILL)
      : file_path_(std::move(file_path)), signal_(signal) {}
  /// Both try for a second, and throw std::runtime_error if no server takes it by then, or at once
  /// if the scope is too long for one write that is not torn.
  void acquire(const std::string& scope_id, double expiration_time) override;
  void release(const std::string& scope_id) override { acquire(scope_id, -1); }

 private:
  std::string file_path_;
  int signal_;
};

/// Makes a FIFO and ends processes of this machine whose timers expire. Requests count when they
/// come, timers expire on time, and those of a process end with it; so nothing here needs torch's
/// max_interval, and no thread: all runs on the loop.
///
/// Unlike torch's it does not end its own process along with a worker.
class FileTimerServer final : private Watchdog::Owner {
 public:
  /// "watchdog started", "timer expired", "kill worker process", "watchdog stopped"; the request
  /// that it is about, or null. As torch's log_event. What it throws is logged.
  using LogEvent = std::function<void(std::string_view name, const FileTimerRequest* request)>;
  /// Borrows loop and clock. The FIFO is made by start(), `file_path` empty: in a new folder.
  FileTimerServer(boost::asio::io_context& loop, Clock& clock, std::string file_path,
                  std::string run_id, LogEvent log_event = {});
  FileTimerServer(const FileTimerServer&) = delete;
  FileTimerServer& operator=(const FileTimerServer&) = delete;

  /// Fails as RequestPlace::make().
  Status start();
  /// Forgets all timers and removes the FIFO.
  void stop();
  /// The FIFO's path, from start() on.
  const std::string& path() const { return file_path_; }
  std::size_t timers() const { return watchdog_.deadlines().size(); }

 private:
  /// Any process that this one may signal, as with torch's.
  bool is_ours(pid_t process) const override { return process > 0 && ::kill(process, 0) == 0; }
  void read_waiting() override {
    if (pipe_) pipe_->catch_up();
  }
  void expired(std::vector<ExpiredWorker> workers) override;
  void tell(std::string_view name, const FileTimerRequest* request = nullptr) const;

  boost::asio::io_context& loop_;
  Clock& clock_;
  std::string file_path_;
  const std::string run_id_;
  const LogEvent log_event_;
  std::unique_ptr<RequestPipe> pipe_;
  Watchdog watchdog_;
};

}  // namespace elastrun::timer
