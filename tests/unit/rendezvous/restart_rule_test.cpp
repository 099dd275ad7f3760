// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/restart_rule.hpp"

#include <doctest/doctest.h>

using namespace elastrun::rendezvous;
using Kind = Cause::Kind;

TEST_CASE("restart rule: failures of workers spend the budget, and the job has failed after it") {
  RestartRule rule({.max_restarts = 2});
  const auto first = rule.decide({.kind = Kind::WorkerFailed});
  CHECK(first.restarts);
  CHECK(first.attempt_spent);
  CHECK(first.restarts_left == 1);
  CHECK(rule.decide({.kind = Kind::WorkerFailed}).restarts_left == 0);
  CHECK_FALSE(rule.decide({.kind = Kind::WorkerFailed}).restarts);
  CHECK(rule.spent() == 2);
}

TEST_CASE("restart rule: changes of membership cost nothing, also without a budget") {
  RestartRule rule({.max_restarts = 0});
  for (const auto kind : {Kind::NodeLost, Kind::NodeLeft, Kind::NodeJoined}) {
    const auto decision = rule.decide({.kind = kind});
    CHECK(decision.restarts);
    CHECK_FALSE(decision.attempt_spent);
    CHECK(decision.restarts_left == 0);
  }
  CHECK(rule.spent() == 0);
}

TEST_CASE("restart rule: what was spent under another coordinator is not given back") {
  RestartRule rule({.max_restarts = 3}, 1);
  rule.learn(2);
  rule.learn(0);
  CHECK(rule.spent() == 2);
  CHECK(rule.decide({.kind = Kind::WorkerFailed}).restarts_left == 0);
}
