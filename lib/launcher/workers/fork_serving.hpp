// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "process/containment.hpp"
#include "process/fork_server.hpp"
#include "process/posix_launcher.hpp"
#include "spec/job_spec.hpp"
#include "workers/worker.hpp"

#include <boost/asio/io_context.hpp>
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
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    const spec::JobSpec& spec;
    process::PosixLauncher& launcher;
    process::Containment& containment;
  };
  /// Null for a job of which no start is served.
  static std::unique_ptr<ForkServing> make(Parts parts);

  /// Before a start of the workers: what of it the server may serve.
  void plan(std::vector<workers::WorkerPlan>& plans);

  void heard(const Moment& one) override { dispatch(one, *this); }
  using Observer::on;
  void on(const moment::Started& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::Ended& seen);

 private:
  explicit ForkServing(Parts parts);
  void attach();
  void adopt();
  void begin();
  bool is_copy() const { return parts_.spec.fork_socket >= 0; }
  std::optional<Result<process::Spawned>> serve(const process::LaunchRequest& request);
  void say_not_served(const std::string& why);
  bool is_present();

  const Parts parts_;
  const bool serves_first_;  // for tests
  std::unique_ptr<Alarm> refill_;
  std::optional<process::LaunchRequest> request_;  // for the server
  std::unique_ptr<process::ForkServer> server_;
  std::string said_;  // why not, last; of a copy: why there is none
  int begun_ = 0, starts_ = 0;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
