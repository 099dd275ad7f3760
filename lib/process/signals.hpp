// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// A signal that somebody sent to the job.
struct SignalEvent {
  int number = 0;
  pid_t sender_pid = 0;  // 0: no process, but the kernel: Ctrl+C, a terminal that has gone
  uid_t sender_uid = 0;  // of the sender, if there is one
  bool operator==(const SignalEvent&) const = default;
};

/// "SIGTERM from process 4711 (slurmstepd)", "SIGINT from the terminal". Looks the name up while
/// the sender still exists.
std::string describe(const SignalEvent& event);

/// What a list of names such as `--signals-to-handle` comes to.
struct SignalList {
  std::vector<int> numbers;           // each once, in the order given
  std::vector<std::string> warnings;  // one sentence for each name that is passed over
};
/// Pure. Passes over unknown names, SIGKILL and SIGSTOP, which no process can handle, and SIGCHLD,
/// by which the system tells of ended children.
SignalList parse_signals(const std::vector<std::string>& names);

/// Tells an order that arrives twice from two orders. Batch systems signal every process of a job,
/// and timeout(1) first a process and then its group, so that the guardian's copy and our own come
/// from the same sender at the same moment. What a person types twice comes from the terminal.
class EchoFilter {
 public:
  /// Whether `event` is a repetition, within 100 ms, of one from the same sending process.
  bool is_echo(const SignalEvent& event, TimePoint now);

 private:
  std::vector<std::pair<SignalEvent, TimePoint>> recent_;
};

/// Receives signals on the loop instead of in a handler. While it exists they are blocked in this
/// process (children get them unblocked by the launcher); those that were ignored before, as with
/// nohup(1), stay ignored and never arrive.
class SignalSource {
 public:
  using OnSignal = std::function<void(const SignalEvent&)>;
  /// `on_signal` runs on the loop, once for each signal but echoes. Signals of which several came
  /// before the loop looked are one, as everywhere in Unix. Without a clock the kernel's is used.
  SignalSource(boost::asio::io_context& io, const std::vector<int>& signals, OnSignal on_signal,
               const Clock* clock = nullptr);
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  /// Takes the block away again; what is pending then has its default effect.
  ~SignalSource();

  /// Those that it listens to: without the ignored ones.
  const std::vector<int>& signals() const { return signals_; }

 private:
  void listen();
  void read_all();

  // Set at construction.
  std::vector<int> signals_;
  OnSignal on_signal_;
  const Clock* clock_;
  // Changes while running. The flag is shared with a completion that may already be queued.
  boost::asio::posix::stream_descriptor descriptor_;
  EchoFilter echoes_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
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
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace elastrun::process
