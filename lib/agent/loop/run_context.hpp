// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/node_policy.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"
#include "process/guardian.hpp"
#include "process/launcher.hpp"
#include "process/process_table.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "workers/channel.hpp"
#include "workers/group.hpp"

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// What all parts of a run borrow.
struct RunMeans {
  boost::asio::io_context& loop;
  Clock& clock;
  const spec::JobSpec& spec;
  guardian::Agent& guardian;
  process::Launcher& launcher;
  process::JobProcesses& processes;
  logs::Console& console;
  files::Lanes& lanes;
  const std::vector<std::string> environment;  // of the agent
  const TimePoint began = clock.now();
};

/// What the parts of a run count anyway: elastrun-telemetry(7) has its instruments.
struct RunCounts {
  std::uint64_t store_requests = 0;      // to the workers' store, where this node serves it
  std::size_t store_connections = 0;     // to it, that are open
  std::uint64_t output = 0, errors = 0;  // bytes that workers have written to stdout and stderr
  workers::Channel::Statistics channel{};
};

/// The run on this node as its parts see it: what all of them borrow, and the calls that lead from
/// one part to those which are made after it. JobRun is the real one, tests have another; a call
/// that a test does not answer says what a run without that part would.
class RunContext : public RunMeans {
 public:
  explicit RunContext(RunMeans means) : RunMeans(std::move(means)) {}
  virtual ~RunContext() = default;
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  // Of the agent.
  /// Puts a fact into its queue. Nothing happens inside this call.
  virtual void post(Fact fact) = 0;
  /// The worker of the group to which a process belongs, or null.
  virtual const workers::Worker* worker_of(pid_t process) const = 0;
  /// Those of the group; null: there is none.
  virtual const std::vector<workers::Worker>* workers() const { return nullptr; }

  // For the agent.
  /// Everything to start the workers of a round with, in the order of local ranks.
  virtual Result<std::vector<workers::WorkerPlan>> plan(const rendezvous::Round& round) = 0;
  /// Brings what the rendezvous says to the agent, as Pushed, past those who want it before.
  virtual void pushed(rendezvous::Push push) { post(Pushed{std::move(push)}); }
  /// Calls `then`, inside or later, with what is wrong with this node; empty: nothing.
  virtual void check(std::function<void(std::string fault)> then) { then({}); }
  /// Adds to a failure what others know: an expired timer, an OOM kill.
  virtual void explain(workers::Failure& /*failure*/) {}
  /// Reads the error files of workers; nothing: they are read on the loop.
  virtual workers::ErrorFileReader::Read error_file_reader() { return {}; }
  /// Bytes, so far, by the workers and what they have started.
  virtual std::uint64_t written() const { return 0; }

  // Of the workers' channel.
  /// Delivers the workers' pending messages; called before their group is forgotten.
  virtual void catch_up() {}
  /// Brings it to the processes that have asked for it, which are none of the workers'.
  virtual void answer_asker(const std::string& /*text*/) {}
  /// Lets workers end that wait until all have returned (--run-path).
  virtual void release() {}

  /// When workers wrote last, or changed something in their store; min(): not yet.
  virtual TimePoint activity() const { return TimePoint::min(); }
  virtual RunCounts counts() const { return {}; }
  /// The file with the result that is there after the run; empty if none is.
  virtual std::string lasting_report() const { return {}; }
  /// A save has taken so long.
  virtual void save_takes(Duration /*time*/) {}
};

}  // namespace elastrun::agent
