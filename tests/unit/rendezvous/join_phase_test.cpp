// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/join_phase.hpp"

#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>

using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

TEST_CASE(
    "join phase: at the end of join_timeout those who are there are enough, last call or not") {
  Rules rules = make_rules(2, 4);
  rules.join_timeout = 10s;
  rules.last_call_timeout = 30s;
  Script job(rules);
  job.join("a");
  job.pass(9s);
  job.join("b");
  CHECK(job.assignment("b").empty());
  job.pass(1s);
  CHECK(job.assignment("a") == "0/2#1");
}

TEST_CASE("join phase: a node that does not stop keeps no place from a newcomer for ever") {
  Rules rules = make_rules(3, 3);
  rules.join_timeout = 10s;
  Script job(rules);
  job.join("a"), job.join("b"), job.join("c");
  job.lose("a");
  job.join("b");  // c never comes back
  job.join("d"), job.join("e");
  CHECK(job.assignment("d").empty());
  job.pass(10s);
  CHECK(job.last<Lost>("c") != nullptr);
  CHECK(job.assignment("b") == "0/3#2");
  CHECK(job.assignment("e") == "2/3#2");
}

TEST_CASE("join phase: a restart that only a latecomer has heard of is not counted anew") {
  Script job(make_rules(1, 2, 3));
  job.join("a", {.id = {1, 4}, .attempt = 1, .nodes = 1});
  REQUIRE(job.last<RoundReady>("a")->round.attempt == 1);
  job.join("b", {.id = {1, 4}, .attempt = 2, .nodes = 1});
  job.pass(1s);
  job.join("a");
  CHECK(job.last<RoundReady>("a")->round.attempt == 2);
  CHECK(job.last<RoundReady>("b")->round.attempt == 2);
}
