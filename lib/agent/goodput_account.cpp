// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput_account.hpp"

#include <algorithm>

namespace elastrun::agent {

using goodput::Bucket;

GoodputAccount::GoodputAccount(Clock& clock, TimePoint job_start, bool several_nodes)
    : clock_(clock), ledger_(job_start), several_nodes_(several_nodes) {
  if (several_nodes_) ledger_.enter(Bucket::Rendezvous, clock_.now());
}

void GoodputAccount::phase(Phase phase, TimePoint now) {
  phase_ = phase;
  switch (phase) {
    case Phase::Joining:
      if (several_nodes_) ledger_.enter(Bucket::Rendezvous, now);
      break;
    case Phase::Starting:
      gone_ = false;
      ledger_.enter(ran_ ? Bucket::Restart : Bucket::Startup, now);
      break;
    case Phase::Running:
      ran_ = true;
      restarting_ = false;
      stopping_since_.reset();
      ledger_.enter(Bucket::Running, now);
      break;
    case Phase::Settling:
    case Phase::Stopping:
    case Phase::Waiting:
      if (!restarting_) stopping(now);
      break;
    case Phase::Barrier:  // waiting for the others is no part of a restart that may follow
      stopping_since_.reset();
      ledger_.enter(Bucket::Stopping, now);
      break;
    case Phase::Ended:
      ledger_.enter(Bucket::Stopping, now);
      break;
  }
}

void GoodputAccount::stopping(TimePoint now) {
  if (!stopping_since_) stopping_since_ = now;
  ledger_.enter(Bucket::Stopping, now);
}

/// The order comes some time after the failure; all since then was on the way to the next start.
void GoodputAccount::restarting(const rendezvous::Restart&) {
  if (phase_ == Phase::Joining) return;  // it was not running: the order is for the others
  const auto now = clock_.now();
  restarting_ = true;
  if (stopping_since_) {
    ledger_.rebook(Bucket::Stopping, Bucket::Restart, now - *stopping_since_, now);
  }
  stopping_since_.reset();
  if (gone_) return lose_uncovered(Bucket::Restart);  // also where all had succeeded here
  ledger_.enter(Bucket::Restart, now);
}

/// Not before: workers that are told to stop may save a last checkpoint.
void GoodputAccount::stopped(const std::vector<workers::Worker>& group, Duration) {
  gone_ = true;
  const bool cut_short = restarting_ || std::ranges::any_of(group, &workers::Worker::failed);
  if (cut_short) lose_uncovered(restarting_ ? Bucket::Restart : Bucket::Stopping);
}

void GoodputAccount::ended(const JobResult& result, const std::vector<workers::Worker>*) {
  if (!result.succeeded()) lose_uncovered(Bucket::Stopping);
}

void GoodputAccount::lose_uncovered(Bucket next) {
  const auto now = clock_.now();
  ledger_.failed(now);
  ledger_.enter(next, now);
}

}  // namespace elastrun::agent
