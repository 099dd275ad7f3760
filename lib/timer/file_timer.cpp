// SPDX-License-Identifier: Apache-2.0
#include "timer/file_timer.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <cerrno>
#include <climits>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdexcept>
#include <thread>
#include <unistd.h>

namespace elastrun::timer {
namespace {

constexpr std::string_view kServerArea = "timer";
// As torch's client: for a server that has not started yet.
constexpr int kTries = 10;
constexpr Duration kBetweenTries = std::chrono::milliseconds(100);

/// 0, or an errno: no FIFO, none who reads it, or full.
int write_once(const std::string& path, const std::string& line) {
  const UniqueFd fifo(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  // ENXIO where no process reads it: O_NONBLOCK makes open(2) fail instead of wait (fifo(7)).
  if (!fifo) return errno;
  // Up to PIPE_BUF bytes go whole or not at all, pipe(7).
  return ::write(fifo.get(), line.data(), line.size()) < 0 ? errno : 0;
}

}  // namespace

std::string FileTimerRequest::to_json() const {
  return json::serialize(json::object{{"version", 1},
                                      {"pid", worker_id},
                                      {"scope_id", valid_utf8(scope_id)},
                                      {"expiration_time", expiration_time},
                                      {"signal", signal}});
}

void FileTimerClient::acquire(const std::string& scope_id, double expiration_time) {
  send({{::getpid(), scope_id, expiration_time}, signal_});
}

void FileTimerClient::release(const std::string& scope_id) {
  send({{::getpid(), scope_id, -1}, 0});
}

void FileTimerClient::send(const FileTimerRequest& request) const {
  const auto line = request.to_json() + '\n';
  // A longer line could be torn apart by another process's (pipe(7)), and both would be lost.
  if (line.size() > PIPE_BUF) {
    throw std::runtime_error(fmt::format("a timer request of {} bytes; at most {} are possible: {}",
                                         line.size(), PIPE_BUF, request.scope_id.substr(0, 60)));
  }
  int failure = 0;
  for (int tried = 0; tried < kTries; ++tried) {
    // A client may wait: without its timer the block that follows would be unprotected.
    if (tried > 0) std::this_thread::sleep_for(kBetweenTries);
    if (failure = write_once(file_path_, line); failure == 0) return;
  }
  throw std::runtime_error(
      fmt::format("no timer server takes requests at {}: {}", file_path_, std::strerror(failure)));
}

FileTimerServer::FileTimerServer(boost::asio::io_context& loop, Clock& clock, std::string file_path,
                                 std::string run_id, LogEvent log_event)
    : loop_(loop),
      clock_(clock),
      file_path_(std::move(file_path)),
      run_id_(std::move(run_id)),
      log_event_(std::move(log_event)),
      watchdog_(loop, clock, *this) {}

FileTimerServer::~FileTimerServer() = default;

/// Any process that this one may signal, as with torch's.
bool FileTimerServer::is_ours(pid_t process) const {
  return process > 0 && ::kill(process, 0) == 0;
}

void FileTimerServer::read_waiting() {
  if (pipe_) pipe_->catch_up();
}

Status FileTimerServer::start() {
  auto place = RequestPlace::make(file_path_);
  if (!place) return std::unexpected(place.error());
  file_path_ = (*place)->path;
  pipe_ = std::make_unique<RequestPipe>(loop_, std::move(*place),
                                        [this](std::string_view line) { take(line); });
  tell("watchdog started", nullptr);
  return {};
}

void FileTimerServer::stop() {
  if (!pipe_) return;
  pipe_.reset();
  watchdog_.clear();
  tell("watchdog stopped", nullptr);
}

void FileTimerServer::take(std::string_view line) {
  const auto request = parse_torch_request(line, clock_.now(), clock_.wall());
  if (!request)
    return log::warning(kServerArea, "Not a timer request, ignored: {}", request.error().text);
  watchdog_.request(*request);
}

FileTimerRequest FileTimerServer::request_of(std::int64_t worker, const Expired& timer) const {
  // Both clocks are read now: the wall clock may have been set since the timer was armed.
  const auto wall = clock_.wall() + (timer.expiry - clock_.now());
  return {{worker, timer.scope, to_seconds(wall)}, timer.signal};
}

void FileTimerServer::expired(std::vector<ExpiredWorker> workers) {
  ExpiredTexts texts;
  for (const auto& one : workers) {
    for (const auto& timer : one.timers) {
      texts[one.worker].push_back(request_of(one.worker, timer).to_json());
    }
  }
  log_debug_info_for_expired_timers(run_id_, texts);
  for (const auto& one : workers) {
    for (const auto& timer : one.timers) {
      const auto request = request_of(one.worker, timer);
      tell("timer expired", &request);
    }
    if (one.signal() == 0) continue;  // it is only told
    const auto reason = request_of(one.worker, one.reason());
    const auto sent = watchdog_.reap(static_cast<pid_t>(one.worker), one.signal());
    if (!sent) {
      log::error(kServerArea, "Cannot end process {}: {}. Another try follows.", one.worker,
                 sent.error().text);
      continue;
    }
    log::info(kServerArea, "Ended process {} by signal {}: timer '{}' has expired", one.worker,
              one.signal(), reason.scope_id);
    tell("kill worker process", &reason);
  }
}

void FileTimerServer::tell(std::string_view name, const FileTimerRequest* request) const {
  if (!log_event_) return;
  try {
    log_event_(name, request);
  } catch (const std::exception& failure) {  // it must not keep a process alive
    log::warning(kServerArea, "log_event has thrown: {}", failure.what());
  }
}

}  // namespace elastrun::timer
