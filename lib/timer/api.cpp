// SPDX-License-Identifier: Apache-2.0

#include "timer/api.hpp"

#include "core/clock.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fmt/format.h>
#include <limits>
#include <mutex>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace elastrun::timer {
namespace {

// Far beyond FILE#LINE; a packet has one size for all.
constexpr std::size_t kLongestScope = 4096;

/// A packet: this, then the scope. Both ends are the same program.
struct Head {
  std::int64_t worker_id;
  double expiration_time;
};

constinit std::mutex change_of_client;

/// Never destroyed: a thread may still be in a block when the process ends.
std::shared_ptr<TimerClient>& configured() {
  static auto* one = new std::shared_ptr<TimerClient>;
  return *one;
}

std::shared_ptr<TimerClient> chosen(std::shared_ptr<TimerClient> client) {
  if (client) return client;
  const std::lock_guard lock(change_of_client);
  if (configured()) return configured();
  throw std::runtime_error("no timer client: call elastrun::timer::configure() first, or name one");
}

constexpr std::string_view kArea = "timer";

std::string scopes_of(const std::vector<TimerRequest>& timers) {
  std::vector<std::string> scopes;
  for (const auto& timer : timers) scopes.push_back("'" + timer.scope_id + "'");
  return "[" + join(scopes, ", ") + "]";
}

}  // namespace

LocalQueue::LocalQueue() {
  std::array<int, 2> ends{-1, -1};
  // Packets, so that requests of several processes do not mix.
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
  reading_.reset(ends[0]);
  writing_.reset(ends[1]);
}

bool LocalQueue::put(const TimerRequest& request) {
  const Head head{request.worker_id, request.expiration_time};
  const auto scope = std::string_view(request.scope_id).substr(0, kLongestScope);
  std::string packet(sizeof head, '\0');
  std::memcpy(packet.data(), &head, sizeof head);
  packet += scope;
  // A server that does not read must not stop the worker.
  return ::send(writing_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void LocalQueue::take_in() {
  std::array<char, sizeof(Head) + kLongestScope> packet;
  while (true) {
    const auto got = ::recv(reading_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
    // -1 with EAGAIN where the queue is empty. Packets keep their bounds, so a part of a head
    // cannot come.
    if (got < static_cast<ssize_t>(sizeof(Head))) return;
    Head head{};
    std::memcpy(&head, packet.data(), sizeof head);
    const auto scope = static_cast<std::size_t>(got) - sizeof head;
    taken_in_.push_back(
        {head.worker_id, std::string(packet.data() + sizeof head, scope), head.expiration_time});
  }
}

std::size_t LocalQueue::size() {
  take_in();
  return taken_in_.size();
}

std::vector<TimerRequest> LocalQueue::get(std::size_t size, Duration timeout) {
  using Steady = std::chrono::steady_clock;
  const auto until = Steady::now() + timeout;
  for (take_in(); taken_in_.size() < size; take_in()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Steady::now());
    pollfd one{reading_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&one, 1, static_cast<int>(left.count())) == 0) break;
  }
  const auto count = std::min(size, taken_in_.size());
  const auto end = taken_in_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<TimerRequest> requests(std::make_move_iterator(taken_in_.begin()),
                                     std::make_move_iterator(end));
  taken_in_.erase(taken_in_.begin(), end);
  return requests;
}

void LocalTimerClient::acquire(const std::string& scope_id, double expiration_time) {
  queue_.put({::getpid(), scope_id, expiration_time});
}

void LocalTimerClient::release(const std::string& scope_id) {
  // As torch: below 0 is a release.
  queue_.put({::getpid(), scope_id, -1});
}

void LocalTimerServer::register_timers(const std::vector<TimerRequest>& requests) {
  for (const auto& request : requests) {
    const std::pair key(request.worker_id, request.scope_id);
    if (request.expiration_time < 0) {
      timers_.erase(key);
    } else {
      timers_.insert_or_assign(key, request);
    }
  }
}

bool LocalTimerServer::reap_worker(std::int64_t worker_id) {
  // 0 and below would be groups, see kill(2): such a worker has never been.
  if (worker_id < 1 || worker_id > std::numeric_limits<pid_t>::max()) return true;
  return ::kill(static_cast<pid_t>(worker_id), SIGKILL) == 0 || errno == ESRCH;
}

void configure(std::shared_ptr<TimerClient> client) {
  const std::lock_guard lock(change_of_client);
  std::swap(configured(), client);  // the old one ends outside the lock, in `client`
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
    log::warning("timer", "The timer '{}' was not released: {}", scope_, failure.what());
  } catch (...) {
    log::warning("timer", "The timer '{}' was not released", scope_);
  }
}

LocalTimerServer::LocalTimerServer(LocalQueue& queue, Clock& clock, Duration max_interval)
    : queue_(queue), clock_(clock), max_interval_(max_interval), alarm_(clock.make_alarm()) {}

void LocalTimerServer::start() {
  alarm_->arm(clock_.now() + max_interval_, [this] {
    start();  // first: a pass may stop it
    run_watchdog();
  });
}

void LocalTimerServer::stop() {
  alarm_->disarm();
}

void LocalTimerServer::run_watchdog() {
  register_timers(queue_.get(std::max<std::size_t>(1, queue_.size()), Duration::zero()));
  const double now = to_seconds(clock_.wall());
  std::map<std::int64_t, std::vector<TimerRequest>> expired;
  for (const auto& [key, timer] : timers_) {
    if (timer.expiration_time <= now) expired[key.first].push_back(timer);
  }
  std::vector<std::int64_t> reaped;
  for (const auto& [worker, timers] : expired) {
    log::info(kArea, "Reaping worker_id=[{}]. Expired timers: {}", worker, scopes_of(timers));
    bool done = true;
    try {
      done = reap_worker(worker);
    } catch (const std::exception& error) {
      log::error(kArea, "Reaping worker {} has thrown: {}", worker, error.what());
    }
    if (done) {
      log::info(kArea, "Successfully reaped worker=[{}]", worker);
      reaped.push_back(worker);
    } else {
      log::error(kArea, "Error reaping worker=[{}]. Will retry on next watchdog.", worker);
    }
  }
  // After the pass, and only of those that ended: the timers of others are what the next pass tries
  // again by.
  std::erase_if(timers_, [&](const auto& timer) {
    return std::ranges::find(reaped, timer.first.first) != reaped.end();
  });
}

}  // namespace elastrun::timer
