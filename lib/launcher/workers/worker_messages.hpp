// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/expiration_timers.hpp"
#include "agent/hang/hang_services.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "workers/channel.hpp"

#include <functional>

namespace elastrun::agent {

/// Brings each packet of the workers' channel to the consumer of its type. What workers say of
/// their training, and their samples, are for all observers.
class WorkerMessages {
 public:
  struct Parts {
    std::function<const workers::Worker*(pid_t process)> worker_of;
    Observer& observers;
    WorkerRecords& records;
    ExpirationTimers& timers;
    HangServices& hang;
    std::function<void(pid_t worker)> returned;  // the script of that worker
    /// A tool on this machine asks for it; deadline 0: it says none.
    std::function<void(const std::string& why, Duration deadline)> preempt;
    std::function<void(pid_t sender)> release;  // what belongs to no worker
  };
  explicit WorkerMessages(Parts parts) : parts_(std::move(parts)) {}

  void heard(workers::Channel::Sender from, workers::Message message) const;
  /// A packet of that worker, by the channel.
  void refused(pid_t worker) const;

 private:
  void heard(pid_t sender, const workers::Worker& worker, workers::Message message) const;

  const Parts parts_;
};

}  // namespace elastrun::agent
