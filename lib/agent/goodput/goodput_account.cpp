// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput/goodput_account.hpp"

#include "goodput/journals/journal_books.hpp"

#include <algorithm>

namespace elastrun::agent {

bool is_failure(const rendezvous::Cause& cause) {
  using Kind = rendezvous::Cause::Kind;
  return cause.kind != Kind::NodeJoined && cause.kind != Kind::NodeLeft;
}

void GoodputAccount::failed(const workers::Judgement& judgement) {
  const auto& first = judgement.first();
  account_.noticed_after(phase_since_ - first.at, workers::exit_time(first),
                         cause_of(first, {}).text);
}

void GoodputAccount::restarting(const rendezvous::Restart& order) {
  account_.restarting(order.cause.text, is_failure(order.cause), clock_.now());
}

void GoodputAccount::stopped(const std::vector<workers::Worker>& group, Duration) {
  account_.stopped(std::ranges::any_of(group, &workers::Worker::failed), clock_.now());
}

void GoodputAccount::worker_said(const workers::Worker& worker, const workers::Message& message) {
  if (!hears_workers_) return;
  if (const auto* one = std::get_if<workers::CheckpointDone>(&message))
    checkpoint(one->step, worker.rank);
  // The steps of one rank stand for all; a checkpoint counts once all ranks that save have it. It
  // is rank 0, where that is here. Else it is not asked for, until the node of rank 0 is lost: the
  // account of the one that follows must not begin with hours in which nothing was done.
  if (worker.rank != first_rank_) return;
  if (const auto* one = std::get_if<workers::StepDone>(&message)) step(one->step);
  if (const auto* one = std::get_if<workers::PhaseEntered>(&message)) {
    account_.entered(one->name, clock_.now());
  }
  const auto* said = std::get_if<workers::GoodputEntries>(&message);
  if (said == nullptr) return;
  const auto now = clock_.now();
  const auto wall = clock_.wall();
  for (const auto& [entry, name, members] : said->entries) {
    account_.recorded(entry, name, goodput::time_of_entry(entry.time, now, wall));
  }
}

void GoodputAccount::ended(const JobResult& result, const std::vector<workers::Worker>*) {
  using Kind = Ending::Kind;
  const auto kind = result.ending.kind;
  account_.ended(result.succeeded(), clock_.now(),
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
