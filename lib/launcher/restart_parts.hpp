// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/saving.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "files/blocking_calls.hpp"
#include "launcher/preemption_sources.hpp"
#include "launcher/restart_check.hpp"
#include "launcher/restart_memory_file.hpp"
#include "spec/job_spec.hpp"

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>

namespace elastrun::agent {

/// What the restart policy and a preemption need on this node, beside the agent: how far the
/// workers are, the ledger's file, the check before a restart, and what asks the job to save and
/// end.
class RestartParts {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    const spec::JobSpec& spec;
    SharedPages& pages;
    files::BlockingCalls& thread;
    std::function<void(rendezvous::Report)> report;
    RestartCheck::Needs needs;  // of the store, before each restart
  };
  explicit RestartParts(Parts parts);

  std::array<Observer*, 2> observers() { return {&saving_, &memory_}; }
  Saving& saving() { return saving_; }
  /// Empty: the policy does not ask for it.
  std::function<void(RestartCheck::Then)> check();
  /// From now on, until `end`, a file or the end of a Slurm job may call `preempt`.
  void begin(PreemptionSources::Preempt preempt);
  void end() { sources_.reset(); }

 private:
  const Parts parts_;
  Saving saving_;
  RestartMemoryFile memory_;
  std::optional<PreemptionSources> sources_;
  std::optional<RestartCheck> check_;
};

/// What an earlier start has left in --restart-memory; null: nothing. Before the loop, for a
/// limited time.
Result<std::shared_ptr<const rendezvous::RestartMemory>> read_restart_memory(
    const spec::JobSpec& spec, WallTime now);

}  // namespace elastrun::agent
