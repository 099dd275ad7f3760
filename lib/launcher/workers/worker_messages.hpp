// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/hang_services.hpp"
#include "agent/loop/agent.hpp"
#include "agent/round/worker_channel.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "workers/channel.hpp"

namespace elastrun::agent {

/// Brings each packet of the workers' channel to the consumer of its type. What workers say of
/// their training, and their samples, are for all observers.
class WorkerMessages {
 public:
  /// Borrows all.
  WorkerMessages(Agent& agent, WorkerChannel& channel, Observer& observers, WorkerRecords& records,
                 HangServices& hang)
      : agent_(agent), channel_(channel), observers_(observers), records_(records), hang_(hang) {}

  void heard(workers::Channel::Sender from, workers::Message message) const;
  /// A packet of that worker, by the channel.
  void refused(pid_t worker) const;

 private:
  void heard(pid_t sender, const workers::Worker& worker, workers::Message message) const;

  Agent& agent_;
  WorkerChannel& channel_;
  Observer& observers_;
  WorkerRecords& records_;
  HangServices& hang_;
};

}  // namespace elastrun::agent
