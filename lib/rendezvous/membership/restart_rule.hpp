// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/round.hpp"
#include "spec/agreed_rules.hpp"

#include <algorithm>

namespace elastrun::rendezvous {

/// Whether the job goes on after a round has broken up, and what that cost.
struct RestartDecision {
  bool restarts = false;       // false: the job has failed
  bool attempt_spent = false;  // it was one of --max-restarts
  int restarts_left = 0;
};

/// The one place that decides whether a job restarts: for the coordinator's State, for a session
/// with a user's handler, and for a member that has lost its coordinator. As torchrun: one count
/// for all nodes; a failure of workers spends a restart, changes of membership cost nothing. Pure.
class RestartRule {
 public:
  explicit RestartRule(const spec::AgreedRules& rules, int spent = 0)
      : rules_(rules), spent_(spent) {}

  RestartDecision decide(const Cause& cause) {
    const bool costs = cause.kind == Cause::Kind::WorkerFailed;
    if (cause.final || (costs && spent_ >= rules_.max_restarts)) return {};
    if (costs) ++spent_;
    return {true, costs, std::max(rules_.max_restarts - spent_, 0)};
  }
  /// What a node remembers of the time before this coordinator.
  void learn(int spent) { spent_ = std::max(spent_, spent); }
  int spent() const { return spent_; }

 private:
  spec::AgreedRules rules_;
  int spent_;
};

}  // namespace elastrun::rendezvous
