// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput_account.hpp"

namespace elastrun::agent {

using goodput::Bucket;

GoodputAccount::GoodputAccount(Clock& clock, TimePoint job_start, bool several_nodes)
    : clock_(clock), ledger_(job_start), several_nodes_(several_nodes) {
  if (several_nodes_) ledger_.enter(Bucket::Rendezvous, clock_.now());
}

void GoodputAccount::phase(Phase phase, TimePoint now) {
  switch (phase) {
    case Phase::Joining:
      if (several_nodes_) ledger_.enter(Bucket::Rendezvous, now);
      break;
    case Phase::Starting:
      ledger_.enter(ran_ ? Bucket::Restart : Bucket::Startup, now);
      break;
    case Phase::Running:
      ran_ = true;
      restarting_ = false;
      ledger_.enter(Bucket::Running, now);
      break;
    case Phase::Settling:
    case Phase::Stopping:
    case Phase::Waiting:
      if (!restarting_) ledger_.enter(Bucket::Stopping, now);
      break;
    case Phase::Barrier:
    case Phase::Ended:
      ledger_.enter(Bucket::Stopping, now);
      break;
  }
}

void GoodputAccount::failed(const workers::Judgement&) {
  ledger_.failed(clock_.now());
}

void GoodputAccount::restarting(const rendezvous::Restart&) {
  restarting_ = true;
  ledger_.enter(Bucket::Restart, clock_.now());
}

}  // namespace elastrun::agent
