// SPDX-License-Identifier: Apache-2.0

#include "launcher/elastic_agent.hpp"

#include "agent/verdict/verdict.hpp"
#include "launcher/job_run.hpp"
#include "process/process_table.hpp"
#include "process/spawn.hpp"

#include <array>
#include <signal.h>
#include <sys/prctl.h>

namespace elastrun::agent {
namespace {

/// The code of an end that the workers did not cause.
Code code_of(const Ending& ending) {
  using Kind = Ending::Kind;
  using Why = rendezvous::Cause::Kind;
  switch (ending.kind) {
    case Kind::Signalled:
    case Kind::GuardianLost:
      return Code::Cancelled;
    case Kind::NoStart:
      return Code::Spawn;
    case Kind::JobFailed:
      if (ending.cause.kind == Why::Timeout) return Code::Timeout;
      if (ending.cause.kind == Why::Closed) return Code::Closed;
      return Code::Rendezvous;
    default:
      return Code::Rendezvous;
  }
}

WorkerState state_of(const Ending& ending) {
  using Kind = Ending::Kind;
  switch (ending.kind) {
    case Kind::Succeeded:
      return WorkerState::Succeeded;
    case Kind::NotNeeded:
      return WorkerState::Stopped;
    case Kind::WorkersFailed:
      return WorkerState::Failed;
    case Kind::JobFailed: {
      const bool worker = ending.cause.kind == rendezvous::Cause::Kind::WorkerFailed;
      return worker ? WorkerState::Failed : WorkerState::Unknown;
    }
    case Kind::Stuck:
      return WorkerState::Unhealthy;
    default:
      return WorkerState::Unknown;
  }
}

}  // namespace

std::string_view state_name(WorkerState state) {
  // torch's WorkerState, in its order.
  constexpr std::array<std::string_view, 7> kNames = {
      "UNKNOWN", "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED"};
  return kNames[static_cast<std::size_t>(state)];
}

Result<RunResult> run_result(const JobResult& result) {
  RunResult out;
  out.state = state_of(result.ending);
  if (out.state == WorkerState::Unknown) {
    return fail(code_of(result.ending), verdict_sentence(result));
  }
  if (result.judgement) {
    for (const auto& failure : result.judgement->failures) out.failures[failure.rank] = failure;
  }
  if (out.state != WorkerState::Succeeded || !result.round) return out;
  for (int local_rank = 0; local_rank < result.local_world_size; ++local_rank) {
    // A program returns its exit code alone, and a success has 0.
    out.return_values[result.round->rank_base + local_rank] = 0;
  }
  return out;
}

namespace {

/// The state of the process that a run changes, as it was before.
class ProcessState {
 public:
  ProcessState() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
    }
    logs::ignore_console_signals();
  }
  ~ProcessState() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, subreaper_ ? 1 : 0, 0, 0, 0);
  }
  ProcessState(const ProcessState&) = delete;
  ProcessState& operator=(const ProcessState&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGPIPE, SIGTTOU, SIGCHLD};
  std::array<struct sigaction, kSignals.size()> before_{};
  // The program around us may be one for children that it has started itself (prctl(2)).
  const bool subreaper_ = process::is_subreaper();
};

OwnRendezvous own_rendezvous(const WorkerSpec& spec) {
  const bool built_in =
      dynamic_cast<rendezvous::BuiltInHandler*>(spec.rdzv_handler.get()) != nullptr;
  // A built-in handler only holds parameters, and job_of() has read them.
  return {.handler = built_in ? nullptr : spec.rdzv_handler,
          .master = {spec.master_addr, spec.master_port}};
}

}  // namespace

LocalElasticAgent::LocalElasticAgent(const WorkerSpec& spec, guardian::Agent* guardian)
    : LocalElasticAgent(job_of(spec), own_rendezvous(spec), spec.inherited_fds, guardian) {}

Result<RunResult> LocalElasticAgent::run() {
  job_result_.reset();
  if (!job_) return std::unexpected(job_.error());
  // Before the run and so destroyed after it: while that closes its files, SIGPIPE must still be
  // ignored.
  const ProcessState process_state;
  process::let_children_inherit(inherited_fds_);
  guardian::Agent no_guardian;
  auto run = JobRun::make(*job_, guardian_ != nullptr ? *guardian_ : no_guardian, own_);
  if (!run) return std::unexpected(run.error().error);
  (*run)->tell_process();
  (*run)->end_with(ends_with_);
  job_result_ = (*run)->run();
  (*run)->finish();
  (*run)->console().finish();
  return run_result(*job_result_);
}

}  // namespace elastrun::agent
