// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/admission.hpp"

#include "support/logged_text.hpp"
#include "unit/rendezvous/agents.hpp"

#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

TEST_CASE("admission: another job and another start of it are refused by name") {
  const Hello hello{"job", Hello::Who::Agent, 0, "170/1", "n7", "ada"};
  CHECK(refusal_of(hello, "job", "170/1").empty());
  CHECK(refusal_of(hello, "job", "").empty());
  CHECK(refusal_of(hello, "", "170/1").empty());
  CHECK(refusal_of({"job", Hello::Who::Agent, 0, "", "", ""}, "job", "170/1").empty());
  CHECK(refusal_of(hello, "other", "170/1").contains("\"other\", not \"job\""));
  const auto text = refusal_of(hello, "job", "170/0");
  CHECK(text.contains("170/0"));
  CHECK(text.contains("170/1"));
}

TEST_CASE("admission: other numbers of nodes are refused, other restarts are not") {
  CHECK(!refusal_of(rules_for(2, 4, 1), rules_for(2, 4, 3)));
  Rules alone = rules_for(2, 4);
  alone.role_restart = "eval,generator";
  CHECK(!refusal_of(alone, alone));
  const auto misuse = refusal_of(rules_for(2, 4), alone).value();
  CHECK(misuse.text.contains(
      "these roles restart alone: eval,generator, for this node no role restarts alone"));
  CHECK(misuse.misuse);
  const auto [text, final, is_misuse] = refusal_of(rules_for(3, 3), rules_for(2, 4)).value();
  CHECK(final);
  CHECK(!is_misuse);
  CHECK(text.contains("--nnodes 2:4"));
  CHECK(text.contains("--nnodes 3"));
}

TEST_CASE("admission: a node with other options is named with them as they are given") {
  Join join{{.id = "n7_1_0"}, {}, rules_for(2, 2, 3)};
  join.rules.rank_order_topology = true;
  const elastrun::test::LoggedText log;
  warn_of_other_rules(join, rules_for(2, 2, 1));
  const auto& text = log.text;
  CHECK(
      text.contains("n7_1_0 was started with --max-restarts 3, the coordinator's "
                    "--max-restarts 1 counts"));
  CHECK(
      text.contains("was started with --rank-order topology, the coordinator's not --rank-order "
                    "topology counts"));
}

TEST_CASE("admission: an agent that states other nodes does not join, and is told") {
  Town town(rules_for(2, 2));
  auto a = town.agent();
  elastrun::log::set_level(elastrun::log::Level::Info);
  const elastrun::test::LoggedText logged;
  a->join(1, "a");
  town.job_rules = rules_for(2, 3);
  auto stranger = town.agent();
  stranger->join();
  const auto lost = stranger->hear<Lost>();
  CHECK(!lost.requeue);
  CHECK(lost.why.contains("--nnodes 2,"));
  CHECK(lost.why.contains("--nnodes 2:3"));
  town.job_rules = rules_for(2, 2);
  auto b = town.agent();
  b->join();
  CHECK(a->round().group_world_size() == 2);
  CHECK(logged.text.contains("node a_1_0 of the job \"job\" joins from 127.0.0.1 (host "));
  elastrun::log::set_level(elastrun::log::Level::Warning);
}
