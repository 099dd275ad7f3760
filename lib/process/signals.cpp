// SPDX-License-Identifier: Apache-2.0
#include "process/signals.hpp"

#include "core/log.hpp"
#include "process/launcher.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

using std::chrono::milliseconds;

// People do not press twice in so short a time, but a worn key bounces.
constexpr auto kBounce = milliseconds(100);
// Between two orders of one script lies at least its sleep(1).
constexpr auto kInsisting = std::chrono::seconds(1);
// No guardian is so slow that it passes a signal on so long after another one has.
constexpr auto kEcho = std::chrono::seconds(10);

bool is_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

Route route_of(const signalfd_siginfo& info) {
  const int code = info.ssi_code;
  // Codes above 0 are the kernel's own.
  if (code > 0 || code == kFromKernel) return Route::Kernel;
  return code == SI_QUEUE ? Route::ThroughGuardian : Route::Process;
}

}  // namespace

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : signals) ::sigaddset(&set, number);
  return set;
}

int passing_signal() {
  return SIGRTMAX - 1;
}

std::string describe(const SignalEvent& event) {
  const std::string name = signal_name(event.number);
  if (event.route == Route::Kernel) return name + " from the terminal or the kernel";
  if (event.sender_pid == 0) return name + " from a process outside of this container";
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
          "unknown signal \"{}\" (expected names such as SIGTERM or SIGUSR1); ignored", name));
    } else if (number == SIGKILL || number == SIGSTOP) {
      list.warnings.push_back(fmt::format("{} cannot be handled by any process; ignored", name));
    } else if (number == SIGCHLD) {
      list.warnings.push_back(
          fmt::format("{} tells of ended children and is unsupported here; ignored", name));
    } else if (std::find(list.numbers.begin(), list.numbers.end(), number) == list.numbers.end()) {
      list.numbers.push_back(number);
    }
  }
  return list;
}

Demand SignalEscalation::heard(const SignalEvent& event, TimePoint now) {
  const auto same = std::find_if(heard_.begin(), heard_.end(), [&](const Heard& one) {
    return one.number == event.number && one.route == event.route;
  });
  if (same == heard_.end()) {
    const bool only_announced = std::ranges::all_of(
        heard_, [](const Heard& one) { return only_announces_end(one.number); });
    heard_.push_back({event.number, event.route, now});
    // scancel --signal=USR1 announces an end, SIGTERM follows: that is a first stop, no repetition.
    const bool more = heard_.size() == 1 || !only_announces_end(event.number);
    return only_announced && more ? Demand::Stop : Demand::Nothing;
  }
  // Only a terminal's Ctrl+C is typed by a person, who may repeat it within a second.
  const bool typed = event.number == SIGINT && event.route == Route::Kernel;
  // Who signals every process of a step tells the agent as well, once each time; so what comes
  // through guardians, of which there may be two, is the same order still.
  const bool echo =
      event.route == Route::ThroughGuardian && std::ranges::any_of(heard_, [&](const Heard& one) {
        return one.number == event.number && one.route == Route::Process;
      });
  const Duration least = typed ? Duration(kBounce) : echo ? Duration(kEcho) : Duration(kInsisting);
  return now - same->first >= least ? Demand::KillNow : Demand::Nothing;
}

bool only_announces_end(int number) {
  return number == SIGUSR1 || number == SIGUSR2;
}

bool stays_ignored(int number) {
  return number != SIGINT && number != SIGQUIT;
}

SignalSource::SignalSource(boost::asio::io_context& io, const std::vector<int>& signals,
                           OnSignal on_signal)
    : on_signal_(std::move(on_signal)), descriptor_(io) {
  // One that is ignored is queued all the same while it is blocked.
  std::copy_if(signals.begin(), signals.end(), std::back_inserter(signals_),
               [](int number) { return !is_ignored(number) || !stays_ignored(number); });
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
  lifetime_.end();
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  const sigset_t set = set_of(signals_);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void SignalSource::ignore_rest() {
  for (const int number : signals_) ::signal(number, SIG_IGN);  // also drops what is pending
}

void SignalSource::listen() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this, alive = lifetime_.token()](boost::system::error_code error) {
                           if (!error && alive) read_all();
                         });
}

void SignalSource::read_all() {
  std::vector<SignalEvent> events;
  signalfd_siginfo info{};
  while (::read(descriptor_.native_handle(), &info, sizeof info) == sizeof info) {
    SignalEvent event;
    event.number = static_cast<int>(info.ssi_signo);
    event.route = route_of(info);
    // By kill(2) it has code 0, and carries no number.
    if (event.number == passing_signal() && info.ssi_code < 0) event.number = info.ssi_int;
    if (event.route != Route::Kernel) event.sender_pid = static_cast<pid_t>(info.ssi_pid);
    events.push_back(event);
  }
  // They come in the order of their numbers, but of SIGTERM and SIGHUP at once the workers should
  // get SIGTERM, at which trainers save their checkpoints.
  std::stable_partition(events.begin(), events.end(),
                        [](const SignalEvent& event) { return event.number == SIGTERM; });
  const auto alive = lifetime_.token();  // the callback may destroy this object
  for (const SignalEvent& event : events) {
    if (alive) on_signal_(event);
  }
  if (alive) listen();
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
      [alive = lifetime_.token(), ring = std::move(on_death)](boost::system::error_code failure) {
        if (!failure && alive) ring();
      });
}

DeathWatch::~DeathWatch() {
  lifetime_.end();
  if (descriptor_.is_open()) descriptor_.release();  // out of epoll, but left open: not ours
}

}  // namespace elastrun::process
