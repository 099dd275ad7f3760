// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/rules.hpp"
#include "spec/job_spec.hpp"
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

TEST_CASE("rules: all of them come from the job; a static one has its own") {
  elastrun::spec::JobSpec job;
  job.min_nodes = 2, job.max_nodes = 4, job.max_restarts = 3;
  job.rdzv_backend = "c10d";
  job.rendezvous.join_timeout = 60s, job.rendezvous.last_call_timeout = 5s;
  job.rendezvous.timeout = 70s;
  const Rules rules = rules_of(job);
  CHECK(rules.min_nodes == 2);
  CHECK(rules.max_nodes == 4);
  CHECK(rules.max_restarts == 3);
  CHECK_FALSE(rules.fixed_ranks);
  CHECK(rules.join_timeout == 60s);
  CHECK(rules.last_call_timeout == 5s);
  job.rdzv_backend = "static";
  const Rules fixed = rules_of(job);
  CHECK(fixed.fixed_ranks);
  CHECK(fixed.min_nodes == 4);
  CHECK(fixed.join_timeout == 70s);
}
