// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput/goodput_account.hpp"

#include "goodput/journals/journal_books.hpp"

#include <algorithm>

namespace elastrun::agent {

bool is_failure(const rendezvous::Cause& cause) {
  using Kind = rendezvous::Cause::Kind;
  return cause.kind != Kind::NodeJoined && cause.kind != Kind::NodeLeft;
}

void GoodputAccount::on(const moment::Failed& seen) {
  const auto& first = seen.judgement.first();
  account_.noticed_after(phase_since_ - first.at, workers::exit_time(first),
                         cause_of(first, {}).text);
}

void GoodputAccount::on(const moment::Restarting& seen) {
  account_.restarting(seen.order.cause.text, is_failure(seen.order.cause), clock_.now());
}

void GoodputAccount::on(const moment::Stopped& seen) {
  account_.stopped(std::ranges::any_of(seen.group, &workers::Worker::failed), clock_.now());
}

void GoodputAccount::on(const moment::WorkerSaid& seen) {
  if (!hears_workers_) return;
  if (const auto* one = std::get_if<workers::CheckpointDone>(&seen.said))
    checkpoint(one->step, seen.worker.rank);
  // The steps of one rank stand for all; a checkpoint counts once all ranks that save have it. It
  // is rank 0, where that is here. Else it is not asked for, until the node of rank 0 is lost: the
  // account of the one that follows must not begin with hours in which nothing was done.
  if (seen.worker.rank != first_rank_) return;
  if (const auto* one = std::get_if<workers::StepDone>(&seen.said)) step(one->step);
  if (const auto* one = std::get_if<workers::PhaseEntered>(&seen.said)) {
    account_.entered(one->name, clock_.now());
  }
  const auto* said = std::get_if<workers::GoodputEntries>(&seen.said);
  if (said == nullptr) return;
  const auto now = clock_.now();
  const auto wall = clock_.wall();
  for (const auto& [entry, name, members] : said->entries) {
    account_.recorded(entry, name, goodput::time_of_entry(entry.time, now, wall));
  }
}

void GoodputAccount::on(const moment::Ended& seen) {
  using Kind = Ending::Kind;
  const auto kind = seen.result.ending.kind;
  account_.ended(seen.result.succeeded(), clock_.now(),
                 kind == Kind::Preempted   ? "preempted"
                 : kind == Kind::Signalled ? "signalled"
                                           : "stopped");
}

void GoodputAccount::tell(JobResult& result) const {
  result.goodput = account_.summary(clock_.now());
  result.restart_paths = account_.restarts().paths();
  result.starts = account_.starts(clock_.now());
}

}  // namespace elastrun::agent
