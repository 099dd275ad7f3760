// SPDX-License-Identifier: Apache-2.0
#include "process/signals.hpp"

#include "core/log.hpp"
#include "process/exit_status.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

using std::chrono::milliseconds;

// Between the two copies lie a few wake-ups; between two orders of one script at least its
// sleep(1).
constexpr auto kEchoTime = milliseconds(100);

bool is_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : signals) ::sigaddset(&set, number);
  return set;
}

}  // namespace

std::string describe(const SignalEvent& event) {
  const std::string name = signal_name(event.number);
  if (event.sender_pid == 0) return name + " from the terminal or the kernel";
  const auto sender = read_process(event.sender_pid);
  if (!sender) return fmt::format("{} from process {}", name, event.sender_pid);
  return fmt::format("{} from process {} ({})", name, event.sender_pid, sender->name);
}

SignalList parse_signals(const std::vector<std::string>& names) {
  SignalList list;
  for (const std::string& name : names) {
    const int number = signal_number(name);
    if (number == 0) {
      list.warnings.push_back(fmt::format(
          "there is no signal \"{}\" (expected names such as SIGTERM or SIGUSR1); passed over",
          name));
    } else if (number == SIGKILL || number == SIGSTOP) {
      list.warnings.push_back(
          fmt::format("{} cannot be handled by any process; passed over", name));
    } else if (number == SIGCHLD) {
      list.warnings.push_back(
          fmt::format("{} tells of ended children and cannot be an order; passed over", name));
    } else if (std::find(list.numbers.begin(), list.numbers.end(), number) == list.numbers.end()) {
      list.numbers.push_back(number);
    }
  }
  return list;
}

bool EchoFilter::is_echo(const SignalEvent& event, TimePoint now) {
  std::erase_if(recent_, [now](const auto& entry) { return now - entry.second > kEchoTime; });
  if (event.sender_pid == 0) return false;
  const bool repeated = std::any_of(recent_.begin(), recent_.end(),
                                    [&](const auto& entry) { return entry.first == event; });
  if (!repeated) recent_.emplace_back(event, now);
  return repeated;
}

SignalSource::SignalSource(boost::asio::io_context& io, const std::vector<int>& signals,
                           OnSignal on_signal, const Clock* clock)
    : on_signal_(std::move(on_signal)), clock_(clock), descriptor_(io) {
  std::copy_if(signals.begin(), signals.end(), std::back_inserter(signals_),
               [](int number) { return !is_ignored(number); });
  const sigset_t set = set_of(signals_);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  const int fd = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  boost::system::error_code error(fd < 0 ? errno : 0, boost::system::system_category());
  if (!error) descriptor_.assign(fd, error);
  if (error) {
    // They keep their default effect, which is to end the agent: better than an agent that is deaf.
    ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
    log::error("process", "cannot listen to signals: {}", error.message());
    if (fd >= 0) ::close(fd);
    return;
  }
  listen();
}

SignalSource::~SignalSource() {
  *alive_ = false;
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  const sigset_t set = set_of(signals_);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void SignalSource::listen() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this, alive = alive_](boost::system::error_code error) {
                           if (!error && *alive) read_all();
                         });
}

void SignalSource::read_all() {
  const auto alive = alive_;  // the callback may destroy this object
  signalfd_siginfo info{};
  while (*alive && ::read(descriptor_.native_handle(), &info, sizeof info) == sizeof info) {
    SignalEvent event;
    event.number = static_cast<int>(info.ssi_signo);
    if (info.ssi_code <= 0) {  // sent by a process; codes above 0 are the kernel's
      event.sender_pid = static_cast<pid_t>(info.ssi_pid);
      event.sender_uid = info.ssi_uid;
    }
    const TimePoint now = clock_ == nullptr ? std::chrono::steady_clock::now() : clock_->now();
    if (!echoes_.is_echo(event, now)) on_signal_(event);
  }
  if (*alive) listen();
}

DeathWatch::DeathWatch(boost::asio::io_context& io, int pidfd, std::function<void()> on_death)
    : descriptor_(io) {
  if (pidfd < 0) return;
  boost::system::error_code error;
  descriptor_.assign(pidfd, error);
  if (error) {
    log::error("process", "cannot watch another process: {}", error.message());
    return;
  }
  descriptor_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [alive = alive_, ring = std::move(on_death)](boost::system::error_code failure) {
        if (!failure && *alive) ring();
      });
}

DeathWatch::~DeathWatch() {
  *alive_ = false;
  if (descriptor_.is_open()) descriptor_.release();  // out of epoll, but left open: not ours
}

}  // namespace elastrun::process
