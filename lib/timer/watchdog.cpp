// SPDX-License-Identifier: Apache-2.0
#include "timer/watchdog.hpp"

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace elastrun::timer {
namespace {

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

Watchdog::Watchdog(boost::asio::io_context& loop, Clock& clock, Owner& owner)
    : loop_(loop),
      clock_(clock),
      owner_(owner),
      alarm_(clock.make_alarm()),
      last_reading_(clock.make_alarm()),
      again_(clock.make_alarm()) {}

bool Watchdog::request(const Request& request) {
  if (!apply(request)) return false;
  arm();
  return true;
}

bool Watchdog::torch_request(const Request& request) {
  bool counted = true;
  for (const auto& one : nested_.translate(request, clock_.now())) {
    counted = apply(one) && counted;
  }
  arm();
  return counted;
}

bool Watchdog::apply(const Request& request) {
  const auto pid = static_cast<pid_t>(request.worker);
  if (!request.expiry && !processes_.contains(pid)) return true;  // nothing is to be released
  const auto held = hold(pid);
  return held == Held::Ended || (held == Held::Yes && deadlines_.apply(request));
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
  nested_.forget(pid);
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
  for (const auto& worker : expired) {
    if (worker.signal() > 0) nested_.forget(worker.worker);
  }
  arm();
  if (!expired.empty()) owner_.expired(std::move(expired));
}

bool Watchdog::runs(pid_t pid) const {
  const auto process = processes_.find(pid);
  return process != processes_.end() && !has_ended(process->second.pidfd.get());
}

UniqueFd Watchdog::pidfd_of(pid_t pid) const {
  const auto process = processes_.find(pid);
  if (process == processes_.end()) return {};
  return UniqueFd(::fcntl(process->second.pidfd.get(), F_DUPFD_CLOEXEC, 0));
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
