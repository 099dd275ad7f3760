// SPDX-License-Identifier: Apache-2.0

#include "agent/loop/job_result.hpp"

#include "core/text.hpp"
#include "workers/diagnostics.hpp"

#include <fmt/format.h>

namespace elastrun::agent {
namespace {

/// This node's id in the round; empty if no round was ever complete.
std::string own_node(const std::optional<rendezvous::Round>& round) {
  const auto index = round ? static_cast<std::size_t>(round->group_rank) : 0;
  return round && index < round->members.size() ? round->members[index].id : std::string();
}

/// Whether the job gave its verdict, as opposed to an end that came over this node alone.
bool is_verdict(const Ending& ending) {
  using Kind = Ending::Kind;
  const bool failed = ending.kind == Kind::WorkersFailed || ending.kind == Kind::JobFailed;
  return failed && (!ending.cause.node.empty() || !ending.cause.text.empty());
}

}  // namespace

rendezvous::Cause cause_of(const workers::Failure& failure, const std::string& node) {
  rendezvous::Cause cause;
  cause.kind = rendezvous::Cause::Kind::WorkerFailed;
  cause.node = node;
  cause.rank = failure.rank;
  cause.local_rank = failure.local_rank;
  // Without our signal the exception would have ended it with 1, as Python does.
  const bool by_us = failure.cut_short && failure.status.how == process::ExitStatus::How::Signaled;
  cause.exit_code = by_us ? 1 : failure.status.as_python();
  cause.text = fmt::format("rank {} {}", failure.rank, workers::what_happened(failure));
  cause.wall_seconds = to_seconds(failure.wall);
  cause.blames_peer = workers::is_victim(failure);
  cause.what = workers::class_of(failure);
  cause.fingerprint = workers::fingerprint_of(failure);
  if (failure.page && failure.page->step) cause.step = *failure.page->step;
  return cause;
}

std::optional<Culprit> choose_culprit(const Ending& ending,
                                      const std::optional<workers::Judgement>& judgement,
                                      const std::optional<rendezvous::Round>& round) {
  using Kind = Ending::Kind;
  if (ending.kind == Kind::Succeeded || ending.kind == Kind::NotNeeded ||
      ending.kind == Kind::Signalled || ending.kind == Kind::Preempted) {
    return std::nullopt;
  }
  const auto* first = judgement ? &judgement->first() : nullptr;
  const bool own = first != nullptr && !first->stopped_by_us;
  // A node that is the whole world need not agree with others. When it told its failure, others of
  // its workers were still about to end: its own judgement of the end is the better one.
  const bool alone = round && round->group_world_size() <= 1;
  const bool own_is_better = own && alone && ending.kind == Kind::WorkersFailed;
  if (is_verdict(ending) && !own_is_better) {
    Culprit culprit{ending.cause, true, false};
    // So that text, report and exit code, which all read this, cannot name different workers.
    culprit.ours = own && culprit.is_worker() && first->rank == ending.cause.rank;
    return culprit;
  }
  if (!own) return std::nullopt;
  return Culprit{cause_of(*first, own_node(round)), false, true};
}

}  // namespace elastrun::agent
