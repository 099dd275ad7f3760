// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_result.hpp"

#include "agent/verdict/verdict.hpp"

#include <array>

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

bool is_running(WorkerState state) {
  return state == WorkerState::Healthy || state == WorkerState::Unhealthy;
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

}  // namespace elastrun::agent
