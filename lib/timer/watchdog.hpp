// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"
#include "timer/deadlines.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <map>
#include <memory>
#include <sys/types.h>
#include <vector>

namespace elastrun::timer {

/// Keeps the timers of running processes, tells when some expire, and ends processes. A process is
/// held by a pidfd from its first request on: so a pid that the kernel gives to another process
/// means nothing, and the timers of a process go with it at once.
class Watchdog {
 public:
  /// The timers' owner: the agent's, torch's server, or a test.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// True if requests of this process count.
    virtual bool is_ours(pid_t process) const = 0;
    /// Called before timers are found expired: time to read requests that wait to be read.
    virtual void read_waiting() {}
    /// `workers` is never empty. All timers of those processes that are to be ended are gone.
    virtual void expired(std::vector<ExpiredWorker> workers) = 0;
  };
  /// Borrows all.
  Watchdog(boost::asio::io_context& loop, Clock& clock, Owner& owner);
  virtual ~Watchdog() = default;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// False if it was ignored although its process runs: it is not ours, or has too many timers. A
  /// request that is read after its process has ended is void, and no fault of anybody's.
  bool request(const Request& request);
  /// One of torch's client, which puts different timers into one scope (NestedScopes).
  bool torch_request(const Request& request);
  /// Signals a process that had timers, and tries again each second as long as that fails and the
  /// process runs. Succeeds as well if it has ended.
  Status reap(pid_t pid, int signal);
  /// True if a process that had timers has not ended.
  bool runs(pid_t pid) const;
  /// For looking at such a process; empty if it has been seen to end.
  UniqueFd pidfd_of(pid_t pid) const;
  /// Forgets all timers and processes.
  void clear();
  const Deadlines& deadlines() const { return deadlines_; }

 private:
  struct Process {
    UniqueFd pidfd;
    std::unique_ptr<boost::asio::posix::stream_descriptor> watch;
    int reap_signal = 0;  // to be sent again
  };
  enum class Held { Yes, Ended, No };
  bool apply(const Request& request);
  Held hold(pid_t pid);
  void forget(pid_t pid);
  void arm();
  void look_again();
  void expire();
  /// As pidfd_send_signal(2), which a test makes fail.
  virtual Status send(int pidfd, int signal) const;
  void reap_again();

  boost::asio::io_context& loop_;
  Clock& clock_;
  Owner& owner_;
  Deadlines deadlines_;
  NestedScopes nested_;
  std::map<pid_t, Process> processes_;
  std::unique_ptr<Alarm> alarm_, last_reading_, again_;
  bool due_ = false;   // last_reading_ is armed
  Lifetime lifetime_;  // completions may be queued when we go
};

}  // namespace elastrun::timer
