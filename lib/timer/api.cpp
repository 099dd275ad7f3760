// SPDX-License-Identifier: Apache-2.0

#include "timer/api.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>

namespace elastrun::timer {
namespace {

constexpr std::string_view kArea = "timer";

/// As much of it as the scope needs travels; both ends are the same program.
struct Packet {
  std::int64_t worker_id;
  double expiration_time;
  char scope[4096];  // far beyond FILE#LINE
};
constexpr std::size_t kHead = offsetof(Packet, scope);

std::atomic<std::shared_ptr<TimerClient>>& configured() {
  // Never destroyed: a thread may still be in a block when the process ends.
  static auto* one = new std::atomic<std::shared_ptr<TimerClient>>;
  return *one;
}

std::shared_ptr<TimerClient> chosen(std::shared_ptr<TimerClient> client) {
  if (!client) client = configured().load();
  if (client) return client;
  throw std::runtime_error("no timer client: call elastrun::timer::configure() first, or name one");
}

}  // namespace

void configure(std::shared_ptr<TimerClient> client) {
  configured().store(std::move(client));
}

Expires::Expires(double after, std::string scope, std::shared_ptr<TimerClient> client,
                 const std::source_location& caller)
    : client_(chosen(std::move(client))),
      scope_(scope.empty() ? fmt::format("{}#{}", caller.file_name(), caller.line())
                           : std::move(scope)) {
  // The wall clock, as the interface has it: servers are other processes.
  const WallTime now = std::chrono::system_clock::now();
  client_->acquire(scope_, to_seconds(now) + after);
}

Expires::~Expires() {
  try {
    client_->release(scope_);
  } catch (const std::exception& failure) {
    log::warning(kArea, "The timer '{}' was not released: {}", scope_, failure.what());
  } catch (...) {
    log::warning(kArea, "The timer '{}' was not released", scope_);
  }
}

LocalQueue::LocalQueue() {
  std::array<int, 2> ends{-1, -1};
  // Packets, so that requests of several processes do not mix.
  ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data());
  reading_.reset(ends[0]);
  writing_.reset(ends[1]);
}

bool LocalQueue::put(const TimerRequest& request) {
  Packet packet{request.worker_id, request.expiration_time, {}};
  const auto size = kHead + request.scope_id.copy(packet.scope, sizeof packet.scope);
  // A server that does not read must not stop the worker.
  return ::send(writing_.get(), &packet, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

std::size_t LocalQueue::size() {
  Packet packet;
  while (true) {
    const auto got = ::recv(reading_.get(), &packet, sizeof packet, MSG_DONTWAIT);
    // -1 with EAGAIN where the queue is empty. Packets keep their bounds, so a part of a head
    // cannot come.
    if (got < static_cast<ssize_t>(kHead)) return taken_in_.size();
    taken_in_.push_back({packet.worker_id,
                         std::string(packet.scope, static_cast<std::size_t>(got) - kHead),
                         packet.expiration_time});
  }
}

std::vector<TimerRequest> LocalQueue::get(std::size_t size, Duration timeout) {
  using Steady = std::chrono::steady_clock;
  const auto until = Steady::now() + timeout;
  while (this->size() < size) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Steady::now());
    pollfd one{reading_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&one, 1, static_cast<int>(left.count())) == 0) break;
  }
  const auto count = static_cast<std::ptrdiff_t>(std::min(size, taken_in_.size()));
  const std::vector<TimerRequest> first(taken_in_.begin(), taken_in_.begin() + count);
  taken_in_.erase(taken_in_.begin(), taken_in_.begin() + count);
  return first;
}

void LocalTimerServer::start() {
  alarm_->arm(clock_.now() + max_interval_, [this] {
    start();  // first: a pass may stop it
    run_watchdog();
  });
}

void LocalTimerServer::register_timers(const std::vector<TimerRequest>& requests) {
  for (const auto& [worker, scope, expiration] : requests) {
    expiration < 0 ? void(timers_.erase({worker, scope}))
                   : void(timers_.insert_or_assign({worker, scope}, expiration));
  }
}

bool LocalTimerServer::reap_worker(std::int64_t worker_id) {
  // 0 and below would be groups, see kill(2): such a worker has never been.
  if (worker_id < 1 || worker_id > std::numeric_limits<pid_t>::max()) return true;
  return ::kill(static_cast<pid_t>(worker_id), SIGKILL) == 0 || errno == ESRCH;
}

void LocalTimerServer::run_watchdog() {
  register_timers(queue_.get(std::max<std::size_t>(1, queue_.size()), Duration::zero()));
  const double now = to_seconds(clock_.wall());
  std::map<std::int64_t, std::vector<std::string>> expired;  // scopes
  for (const auto& [key, expiration] : timers_) {
    if (expiration <= now) expired[key.first].push_back("'" + key.second + "'");
  }
  for (const auto& [worker, scopes] : expired) {
    log::info(kArea, "Reaping worker_id=[{}]. Expired timers: [{}]", worker, join(scopes, ", "));
    bool done = true;
    try {
      done = reap_worker(worker);
    } catch (const std::exception& error) {
      log::error(kArea, "Reaping worker {} has thrown: {}", worker, error.what());
    }
    if (!done) {
      log::error(kArea, "Error reaping worker=[{}]. Will retry on next watchdog.", worker);
      continue;
    }
    log::info(kArea, "Successfully reaped worker=[{}]", worker);
    std::erase_if(timers_, [id = worker](const auto& timer) { return timer.first.first == id; });
  }
}

std::string FileTimerRequest::to_json() const {
  return json::serialize(json::object{{"version", 1},
                                      {"pid", worker_id},
                                      {"scope_id", valid_utf8(scope_id)},
                                      {"expiration_time", expiration_time},
                                      {"signal", signal}});
}

void FileTimerClient::acquire(const std::string& scope_id, double expiration_time) {
  // As torch's client: for a server that has not started yet.
  constexpr int kTries = 10;
  constexpr Duration kBetweenTries = std::chrono::milliseconds(100);
  const FileTimerRequest request{{::getpid(), scope_id, expiration_time},
                                 expiration_time < 0 ? 0 : signal_};
  const auto line = request.to_json() + '\n';
  // A longer line could be torn apart by another process's (pipe(7)), and both would be lost.
  if (line.size() > PIPE_BUF) {
    throw std::runtime_error(fmt::format("a timer request of {} bytes; at most {} are possible: {}",
                                         line.size(), PIPE_BUF, scope_id.substr(0, 60)));
  }
  for (int tried = 1;; ++tried) {
    // ENXIO where no process reads it: O_NONBLOCK makes open(2) fail instead of wait (fifo(7)).
    const UniqueFd fifo(::open(file_path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (fifo && ::write(fifo.get(), line.data(), line.size()) >= 0) return;
    if (tried == kTries) {
      throw std::runtime_error(fmt::format("no timer server takes requests at {}: {}", file_path_,
                                           std::strerror(errno)));
    }
    // A client may wait: without its timer the block that follows would be unprotected.
    std::this_thread::sleep_for(kBetweenTries);
  }
}

FileTimerServer::FileTimerServer(boost::asio::io_context& loop, Clock& clock, std::string file_path,
                                 std::string run_id, LogEvent log_event)
    : loop_(loop),
      clock_(clock),
      file_path_(std::move(file_path)),
      run_id_(std::move(run_id)),
      log_event_(std::move(log_event)),
      watchdog_(loop, clock, *this) {}

Status FileTimerServer::start() {
  auto place = RequestPlace::make(file_path_);
  if (!place) return std::unexpected(place.error());
  file_path_ = (*place)->path;
  const auto on_line = [this](std::string_view line) {
    const auto request = parse_torch_request(line, clock_.now(), clock_.wall());
    if (request) return void(watchdog_.request(*request));
    log::warning(kArea, "Not a timer request, ignored: {}", request.error().text);
  };
  pipe_ = std::make_unique<RequestPipe>(loop_, std::move(*place), on_line);
  tell("watchdog started");
  return {};
}

void FileTimerServer::stop() {
  if (!pipe_) return;
  pipe_.reset();
  watchdog_.clear();
  tell("watchdog stopped");
}

void FileTimerServer::expired(std::vector<ExpiredWorker> workers) {
  const auto request_of = [this](const ExpiredWorker& one, const Expired& timer) {
    // Both clocks are read now: the wall clock may have been set since the timer was armed.
    const auto wall = clock_.wall() + (timer.expiry - clock_.now());
    return FileTimerRequest{{one.worker, timer.scope, to_seconds(wall)}, timer.signal};
  };
  ExpiredTexts texts;
  for (const auto& one : workers) {
    for (const auto& timer : one.timers) {
      texts[one.worker].push_back(request_of(one, timer).to_json());
    }
  }
  log_debug_info_for_expired_timers(run_id_, texts);
  for (const auto& one : workers) {
    for (const auto& timer : one.timers) {
      const auto request = request_of(one, timer);
      tell("timer expired", &request);
    }
    if (one.signal() == 0) continue;  // it is only told
    const auto reason = request_of(one, one.reason());
    const auto sent = watchdog_.reap(static_cast<pid_t>(one.worker), one.signal());
    if (!sent) {
      log::error(kArea, "Cannot end process {}: {}. Another try follows.", one.worker,
                 sent.error().text);
      continue;
    }
    log::info(kArea, "Ended process {} by signal {}: timer '{}' has expired", one.worker,
              one.signal(), reason.scope_id);
    tell("kill worker process", &reason);
  }
}

void FileTimerServer::tell(std::string_view name, const FileTimerRequest* request) const {
  if (!log_event_) return;
  try {
    log_event_(name, request);
  } catch (const std::exception& failure) {  // it must not keep a process alive
    log::warning(kArea, "log_event has thrown: {}", failure.what());
  }
}

}  // namespace elastrun::timer
