// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "timer/api.hpp"
#include "timer/watchdog.hpp"

#include <boost/asio/io_context.hpp>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::timer {

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
  void release(const std::string& scope_id) override;

 private:
  void send(const FileTimerRequest& request) const;

  std::string file_path_;
  int signal_;
};

/// Makes a FIFO and ends processes of this machine whose timers expire. Requests count when they
/// come, timers expire on time, and those of a process end with it; so nothing here needs torch's
/// max_interval, and no thread: all runs on the loop.
///
/// Other than torch's it does not end its own process along with a worker.
class FileTimerServer final : private Watchdog::Owner {
 public:
  /// "watchdog started", "timer expired", "kill worker process", "watchdog stopped"; the request
  /// that it is about, or null. As torch's log_event. What it throws is logged.
  using LogEvent = std::function<void(std::string_view name, const FileTimerRequest* request)>;
  /// Borrows loop and clock. The FIFO is made by start(), `file_path` empty: in a new folder.
  FileTimerServer(boost::asio::io_context& loop, Clock& clock, std::string file_path,
                  std::string run_id, LogEvent log_event = {});
  ~FileTimerServer() override;
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
  void take(std::string_view line);
  bool is_ours(pid_t process) const override;
  void read_waiting() override;
  void expired(std::vector<ExpiredWorker> workers) override;
  void tell(std::string_view name, const FileTimerRequest* request) const;
  FileTimerRequest request_of(std::int64_t worker, const Expired& timer) const;

  boost::asio::io_context& loop_;
  Clock& clock_;
  std::string file_path_;
  const std::string run_id_;
  const LogEvent log_event_;
  std::unique_ptr<RequestPipe> pipe_;
  Watchdog watchdog_;
};

}  // namespace elastrun::timer
