// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput_account.hpp"

#include <algorithm>

namespace elastrun::agent {

goodput::NodePhase node_phase(Phase phase) {
  using goodput::NodePhase;
  switch (phase) {
    case Phase::Joining:
      return NodePhase::Joining;
    case Phase::Starting:
      return NodePhase::Starting;
    case Phase::Running:
      return NodePhase::Running;
    case Phase::Settling:
      return NodePhase::Settling;
    case Phase::Stopping:
      return NodePhase::Stopping;
    case Phase::Waiting:
      return NodePhase::Waiting;
    case Phase::Barrier:
      return NodePhase::Barrier;
    case Phase::Ended:
      break;
  }
  return NodePhase::Ended;
}

void GoodputAccount::stopped(const std::vector<workers::Worker>& group, Duration) {
  account_.stopped(std::ranges::any_of(group, &workers::Worker::failed), clock_.now());
}

void GoodputAccount::ended(const JobResult& result, const std::vector<workers::Worker>*) {
  account_.ended(result.succeeded(), clock_.now());
}

}  // namespace elastrun::agent
