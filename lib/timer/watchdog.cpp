// SPDX-License-Identifier: Apache-2.0

#include "timer/watchdog.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace elastrun::timer {
namespace {

constexpr std::string_view kFile = "contextlib.py#";

Request numbered(const Request& request, std::size_t number, std::optional<TimePoint> expiry) {
  auto one = request;
  one.number = number;
  one.expiry = expiry;
  return one;
}

namespace asio = boost::asio;

// Between the expiry and its consequence: the loop reads what has come by then through every
// descriptor. A release that was written in time must count, though both are ready at once.
constexpr Duration kLastReading = std::chrono::milliseconds(1);
constexpr Duration kReapAgain = std::chrono::seconds(1);

UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool has_ended(int pidfd) {
  pollfd one{pidfd, POLLIN, 0};
  // A pidfd becomes readable when its process ends, also while that is a zombie (pidfd_open(2)).
  return ::poll(&one, 1, 0) == 1;
}

}  // namespace

bool is_torch_default(std::string_view scope) {
  const auto at = scope.rfind(kFile);
  if (at == std::string_view::npos || (at > 0 && scope[at - 1] != '/')) return false;
  const auto line = scope.substr(at + kFile.size());
  return !line.empty() && line.find_first_not_of("0123456789") == std::string_view::npos;
}

const Expired& ExpiredWorker::reason() const {
  const auto found =
      std::ranges::find_if(timers, [](const Expired& timer) { return timer.signal > 0; });
  return found == timers.end() ? timers.front() : *found;
}

bool Deadlines::apply(const Request& request) {
  const std::pair key(request.worker, request.scope);
  const bool known = nested_.contains(key);
  // Only torch's default name is the same for all blocks that nest; users' names are taken as they
  // are.
  const bool nests = request.nests && is_torch_default(request.scope);
  if (!nests || (!known && nested_.size() >= kMostNested)) return set(request);
  auto& blocks = nested_[key];
  const bool counted =
      request.expiry ? begin(blocks, request) : end(blocks, request, request.armed);
  // Or a process with many scopes would count against kMostNested for as long as it lives.
  if (blocks.empty()) nested_.erase(key);
  return counted;
}

bool Deadlines::begin(Blocks& blocks, const Request& request) {
  // So deep nothing nests: releases have been lost.
  if (blocks.size() == kDeepest) end(blocks, request, *request.expiry);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    auto& outer = blocks[i];
    // Requests of threads look the same, so an outer block that would expire first may be another
    // thread's: it is suspended while the inner one lasts.
    if (outer.expiry > *request.expiry) continue;
    outer.expiry = *request.expiry;
    if (!std::exchange(outer.suspended, true)) set(numbered(request, i + 1, {}));
  }
  blocks.push_back({*request.expiry - request.armed, *request.expiry, request.signal});
  return set(numbered(request, blocks.size(), request.expiry));
}

bool Deadlines::end(Blocks& blocks, const Request& request, TimePoint now) {
  if (blocks.empty()) return true;
  set(numbered(request, blocks.size(), {}));
  blocks.pop_back();
  if (blocks.empty() || !blocks.back().suspended) return true;
  auto& outer = blocks.back();
  outer.suspended = false;
  // Its whole time once more: of two mistakes, the one that ends no process which is in time.
  outer.expiry = std::max(outer.expiry, now + outer.after);
  auto again = numbered(request, blocks.size(), outer.expiry);
  again.signal = outer.signal;
  again.armed = outer.expiry - outer.after;
  return set(again);
}

bool Deadlines::set(const Request& request) {
  auto& timers = timers_[request.worker];
  const Name name(request.scope, request.number);
  // As with torch, the same scope again replaces its timer.
  if (const auto old = timers.find(name); old != timers.end()) {
    by_expiry_.erase({old->second.expiry, request.worker, name});
    timers.erase(old);
  }
  // A script that never releases must not fill the agent's memory.
  const bool counts = !request.expiry || timers.size() < kMostOfWorker;
  if (request.expiry && counts) {
    timers.emplace(name, Expired{request.scope, *request.expiry, request.signal, request.armed});
    by_expiry_.emplace(*request.expiry, request.worker, name);
  }
  if (timers.empty()) timers_.erase(request.worker);
  return counts;
}

std::optional<TimePoint> Deadlines::next() const {
  if (by_expiry_.empty()) return std::nullopt;
  return std::get<TimePoint>(*by_expiry_.begin());
}

std::vector<ExpiredWorker> Deadlines::take_expired(TimePoint now) {
  std::vector<ExpiredWorker> workers;
  while (!by_expiry_.empty() && *next() <= now) {
    const auto [expiry, pid, name] = *by_expiry_.begin();
    auto worker = std::ranges::find(workers, pid, &ExpiredWorker::worker);
    if (worker == workers.end()) worker = workers.insert(worker, {pid, {}});
    worker->timers.push_back(timers_[pid][name]);
    set({pid, name.first, {}, 0, name.second});
  }
  // A timer that only tells ends no process, whose other timers go on.
  for (const auto& worker : workers) {
    if (worker.signal() > 0) forget(worker.worker);
  }
  return workers;
}

void Deadlines::forget(std::int64_t worker) {
  for (const auto& [name, timer] : timers_[worker]) by_expiry_.erase({timer.expiry, worker, name});
  timers_.erase(worker);
  nested_.erase(nested_.lower_bound({worker, {}}), nested_.lower_bound({worker + 1, {}}));
}

Watchdog::Watchdog(boost::asio::io_context& loop, Clock& clock, Owner& owner)
    : loop_(loop),
      clock_(clock),
      owner_(owner),
      alarm_(clock.make_alarm()),
      last_reading_(clock.make_alarm()),
      again_(clock.make_alarm()) {}

bool Watchdog::request(const Request& request) {
  const auto pid = static_cast<pid_t>(request.worker);
  if (!request.expiry && !processes_.contains(pid)) return true;  // nothing is to be released
  const auto held = hold(pid);
  const bool counts = held == Held::Ended || (held == Held::Yes && deadlines_.apply(request));
  arm();
  return counts;
}

/// If another process has this pid by now, the timers in hand belong to the one that has ended.
Watchdog::Held Watchdog::hold(pid_t pid) {
  const auto known = processes_.find(pid);
  if (known != processes_.end() && !has_ended(known->second.pidfd.get())) return Held::Yes;
  if (known != processes_.end()) forget(pid);
  // First hold the process, then ask whose it is: in the other order its number may be given away
  // in between.
  auto pidfd = open_pidfd(pid);
  if (pidfd ? has_ended(pidfd.get()) : errno == ESRCH) return Held::Ended;
  if (!pidfd || !owner_.is_ours(pid)) return Held::No;
  // A second descriptor, since Asio closes the one that it is given.
  UniqueFd watched(::fcntl(pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!watched) return Held::No;
  using Descriptor = asio::posix::stream_descriptor;
  auto watch = std::make_unique<Descriptor>(loop_, watched.release());
  watch->async_wait(Descriptor::wait_read,
                    [this, pid, alive = lifetime_.token()](const auto& error) {
                      if (error || !alive) return;
                      forget(pid);
                      arm();
                    });
  processes_.emplace(pid, Process{std::move(pidfd), std::move(watch)});
  return Held::Yes;
}

void Watchdog::forget(pid_t pid) {
  deadlines_.forget(pid);
  processes_.erase(pid);
}

void Watchdog::clear() {
  while (!processes_.empty()) forget(processes_.begin()->first);
  alarm_->disarm();
  last_reading_->disarm();
  again_->disarm();
  due_ = false;
}

void Watchdog::arm() {
  const auto next = deadlines_.next();
  next ? alarm_->arm(*next, [this] { look_again(); }) : alarm_->disarm();
}

void Watchdog::look_again() {
  // A second expiry within that moment is found by the same look.
  if (std::exchange(due_, true)) return;
  last_reading_->arm(clock_.now() + kLastReading, [this] { expire(); });
}

void Watchdog::expire() {
  due_ = false;
  // A release that was written in time may still wait in the channel.
  owner_.read_waiting();
  auto expired = deadlines_.take_expired(clock_.now());
  arm();
  if (!expired.empty()) owner_.expired(std::move(expired));
}

bool Watchdog::runs(pid_t pid) const {
  const auto process = processes_.find(pid);
  return process != processes_.end() && !has_ended(process->second.pidfd.get());
}

Status Watchdog::send(int pidfd, int signal) const {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return {};
  return std::unexpected(errno_error(Code::Io, "cannot signal the process", errno));
}

Status Watchdog::reap(pid_t pid, int signal) {
  const auto process = processes_.find(pid);
  if (!runs(pid)) return {};
  const auto sent = send(process->second.pidfd.get(), signal);
  process->second.reap_signal = sent ? 0 : signal;
  // A process below sudo refuses the signal; it may end by itself, or change its user.
  if (!sent) again_->arm(clock_.now() + kReapAgain, [this] { reap_again(); });
  return sent;
}

void Watchdog::reap_again() {
  for (const auto& [pid, process] : processes_) {
    // reap() adds and removes no process, so the loop may go on over the map.
    if (process.reap_signal != 0) (void)reap(pid, process.reap_signal);
  }
}

}  // namespace elastrun::timer
