// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "process/containment.hpp"
#include "process/fork_server.hpp"
#include "process/posix_launcher.hpp"
#include "workers/worker.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace elastrun::agent {

/// Serves the starts of workers after the first from a fork server (--start-method forkserver and
/// auto, --warm-spares). The server is started when the first workers have been, has its children
/// forked when a restart is ordered, or ahead, and ends with the job. A start that it cannot serve
/// is an exec, and the log says why.
///
/// Where the caller has left a copy of itself (JobSpec::fork_socket), that one forks all workers,
/// the first ones, too: what it cannot fork does not start, and another one is never made.
class ForkServing final : public Observer {
 public:
  /// Null for a job of which no start is served. Borrows all.
  static std::unique_ptr<ForkServing> make(RunContext& run, process::PosixLauncher& launcher,
                                           process::Containment& containment);

  /// Before a start of the workers: what of it the server may serve.
  void plan(std::vector<workers::WorkerPlan>& plans);

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::Started& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::Ended& seen);

 private:
  ForkServing(RunContext& run, process::PosixLauncher& launcher, process::Containment& containment);
  void attach();
  void adopt();
  void begin();
  bool is_copy() const { return run_.spec.fork_socket >= 0; }
  std::optional<Result<process::Spawned>> serve(const process::LaunchRequest& request);
  void say_not_served(const std::string& why);
  bool is_present();

  RunContext& run_;
  process::PosixLauncher& launcher_;
  process::Containment& containment_;
  const bool serves_first_;  // for tests
  std::unique_ptr<Alarm> refill_;
  std::optional<process::LaunchRequest> request_;  // for the server
  std::unique_ptr<process::ForkServer> server_;
  std::string said_;  // why not, last; of a copy: why there is none
  int begun_ = 0, starts_ = 0;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
