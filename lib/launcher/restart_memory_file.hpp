// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"

#include <memory>
#include <string>

namespace elastrun::agent {

/// The file of --restart-memory: what the restart policy knows of errors and bad nodes, for the
/// next start of the job. Written by the agent of group rank 0, as a whole, on a thread.
class RestartMemoryFile final : public Observer {
 public:
  explicit RestartMemoryFile(RunContext& run) : run_(run) {}

  /// What an earlier start has left; null: nothing. Its restarts are not those of this start. May
  /// wait for the file system. Fails with Io for what is not a regular file.
  static Result<std::shared_ptr<const rendezvous::RestartMemory>> read(const std::string& path,
                                                                       WallTime now);

  void heard(const Moment& one) override { dispatch(one, *this); }
  using Observer::on;
  void on(const moment::RoundReady& seen) { writes_ = seen.round.group_rank == 0; }
  void on(const moment::Restarting& seen) { write(seen.order.memory); }
  void on(const moment::RoleRestarting& seen) { write(seen.order.memory); }
  void on(const moment::Ended& seen) { write(seen.result.memory); }

 private:
  void write(const std::shared_ptr<const rendezvous::RestartMemory>& memory);

  RunContext& run_;
  bool writes_ = false;
};

}  // namespace elastrun::agent
