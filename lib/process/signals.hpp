// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// A set of these signals.
sigset_t set_of(const std::vector<int>& signals);

/// Blocks signals in this thread while it lives.
class BlockedSignals {
 public:
  explicit BlockedSignals(const sigset_t& set) { ::sigprocmask(SIG_BLOCK, &set, &before_); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

/// The way by which a signal came. One end of a job often takes two of them at once: a batch system
/// signals every process of a step, a shell its jobs and then the kernel those of the terminal.
enum class Route {
  Process,          // some process signalled us
  ThroughGuardian,  // some process signalled the guardian, which passed it on
  Kernel,           // Ctrl+C, or a terminal that has gone
};

/// si_code of what the kernel sent (a terminal, mostly), passed on. Only codes below 0 may be given
/// by a process; of what processes sent it is SI_QUEUE.
constexpr int kFromKernel = SI_ASYNCIO;

/// The signal that the guardian sends for one of Agent::tell_apart(), with that one's number as its
/// value. The kernel keeps one pending signal of each number, so the guardian's SIGUSR1 and one for
/// the agent itself would merge; it queues real-time signals.
int passing_signal();

/// A signal that was sent to the job.
struct SignalEvent {
  int number = 0;
  pid_t sender_pid = 0;  // 0: the kernel, or a process outside of this pid namespace
  Route route = Route::Process;
  bool operator==(const SignalEvent&) const = default;
};

/// "SIGTERM from process 4711 (slurmstepd)", "SIGINT from the terminal or the kernel". Looks the
/// name up while the sender still exists.
std::string describe(const SignalEvent& event);

/// The result of reading a list of names such as `--signals-to-handle`.
struct SignalList {
  std::vector<int> numbers;           // each once, in the order given
  std::vector<std::string> warnings;  // one sentence for each name that is ignored
};
/// Pure. Passes over unknown names, SIGKILL and SIGSTOP, which no process can handle, and SIGCHLD,
/// by which the system tells of ended children.
SignalList parse_signals(const std::vector<std::string>& names);

/// The demand that a signal makes on a job, given those before it.
enum class Demand {
  Stop,     // the first one: the workers get it, and their time to end
  Nothing,  // the same end again, by another signal or on another way
  KillNow,  // the request was repeated
};

/// SIGUSR1 and SIGUSR2, at which workers may well go on: batch systems send them before the end,
/// and SIGTERM at it.
bool only_announces_end(int number);

/// Tells one request to end that arrives by several signals from a repeated request. Only a second
/// signal on the same route is a repetition: Ctrl+C typed again, or the same signal from processes
/// at least a second after the first. So SIGHUP by a shell and then by the kernel, SIGTERM and
/// SIGHUP by systemd, and a step of which every process is signalled each are one end, however slow
/// the machine is: where the agent was signalled itself, what guardians pass on counts after ten
/// seconds only. A key that bounces does not count as a second press. The first other signal after
/// those that only announce the end is a stop again.
class SignalEscalation {
 public:
  Demand heard(const SignalEvent& event, TimePoint now);

 private:
  struct Heard {
    int number;
    Route route;
    TimePoint first;
  };
  std::vector<Heard> heard_;
};

/// True if a signal whose action is SIG_IGN stays ignored. nohup(1) means it; a shell without job
/// control, which ignores SIGINT and SIGQUIT in all that it starts with `&`, does not: a sender of
/// those wants the launcher's end, and with torchrun gets it.
bool stays_ignored(int number);

/// Receives signals on the loop instead of in a handler. While it exists they are blocked in this
/// process (children get them unblocked by the launcher); those that were ignored before, as with
/// nohup(1), stay ignored and never arrive, unless stays_ignored() says otherwise.
class SignalSource {
 public:
  using OnSignal = std::function<void(const SignalEvent&)>;
  /// `on_signal` runs on the loop, once for each signal. Signals of which several came before the
  /// loop looked are one, as everywhere in Unix.
  SignalSource(boost::asio::io_context& io, const std::vector<int>& signals, OnSignal on_signal);
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  /// Takes the block away again; what is pending then has its default effect.
  ~SignalSource();

  /// Ignores its signals from now on, to the end of this process and in spite of the destructor:
  /// for a program whose exit code is decided.
  void ignore_rest();

  /// The signals that it listens to: without the ignored ones.
  const std::vector<int>& signals() const { return signals_; }

 private:
  void listen();
  void read_all();

  // Set at construction.
  std::vector<int> signals_;
  OnSignal on_signal_;
  // Changes while running. The flag is shared with a completion that may already be queued.
  boost::asio::posix::stream_descriptor descriptor_;
  Lifetime lifetime_;
};

/// Runs `on_death` once on the loop when the process behind a pidfd has ended: the guardian, of
/// which Agent::guardian_fd() tells. Does not own the descriptor; -1 is watched in vain.
class DeathWatch {
 public:
  DeathWatch(boost::asio::io_context& io, int pidfd, std::function<void()> on_death);
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;
  ~DeathWatch();

 private:
  boost::asio::posix::stream_descriptor descriptor_;
  Lifetime lifetime_;
};

}  // namespace elastrun::process
