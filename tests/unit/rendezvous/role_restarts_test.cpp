// SPDX-License-Identifier: Apache-2.0
// A role that restarts alone, in a round that goes on for the others.
#include "rendezvous/membership/state.hpp"
#include "rendezvous/session/make_session.hpp"
#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>
#include <string>
#include <utility>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

/// Nodes t.. are trainers, g.. generators, which restart alone.
struct Mixed : Script {
  explicit Mixed(Rules rules) : Script(std::move(rules)) {}

  void come(const std::string& name, int port = 29000) {
    if (!peers.contains(name)) peers[name] = ++last_peer;
    Node node = make_node(name);
    node.role = name[0] == 't' ? "trainer" : "generator";
    node.grace = grace;
    node.store_port = static_cast<std::uint16_t>(port);
    state.join(peers[name], std::move(node), {{1, state.round_number()}, state.attempt(), 0}, now);
    read();
  }
  void fail_by(const std::string& name, spec::CauseClass what = spec::CauseClass::Error,
               bool goes_on = false) {
    Cause cause;
    cause.node = name + "_1_0";
    cause.what = what;
    state.fail(peers[name], state.round_number(), cause, now, goes_on);
    read();
  }
  const Round* round(const std::string& name) {
    const auto* ready = last<RoundReady>(name);
    return ready != nullptr ? &ready->round : nullptr;
  }
  std::size_t words(const std::string& name) { return told[name].size(); }
};

Rules own_generators(int nodes, int max_restarts) {
  Rules rules = make_rules(nodes, nodes, max_restarts);
  rules.role_restart = "generator";
  rules.reaction = 1s;
  return rules;
}

/// Two generators and two trainers, in this order of group ranks.
Mixed four(int max_restarts = 3) {
  Mixed job(own_generators(4, max_restarts));
  for (const char* name : {"g1", "g2", "t1", "t2"}) job.come(name);
  REQUIRE(job.assignment("t2") == "3/4#1");
  return job;
}

}  // namespace

TEST_CASE("own roles: a restart of all wins over one that is under way") {
  for (const bool is_back : {true, false}) {
    CAPTURE(is_back);
    Mixed job = four();
    job.fail_by("g1");
    job.come("g1");
    if (is_back) job.fail_by("t1");
    const auto words = job.words("g2");
    if (!is_back) job.lose("t1", Loss::Ended), job.come("t3");
    // It stops already and comes by itself: an order would make it come twice.
    CHECK(job.words("g2") == words);
    job.come("t2"), job.come("g2");
    if (is_back) job.come("t1");
    CHECK(job.state.round_number() == 2);
    CHECK(job.assignment("g1") == "0/4#2");
    CHECK(job.assignment("g2") == "1/4#2");
    CHECK(job.round("g2")->attempt == (is_back ? 2 : 1));
  }
}

TEST_CASE("own roles: a second failure and a success that cross the order change nothing") {
  Mixed job = four();
  job.fail_by("g1");
  job.fail_by("g2");
  job.succeed("g2");
  CHECK(job.state.attempt() == 1);
  job.come("g1"), job.come("g2");
  CHECK(job.assignment("g2") == "1/4#1");
}

TEST_CASE("own roles: one that has finished starts again with its role; one that has gone cannot") {
  Mixed job = four();
  job.succeed("g2");
  SUBCASE("still there") {
    job.fail_by("g1");
    CHECK(job.last<Restart>("g2")->role == "generator");
    job.come("g1"), job.come("g2");
    CHECK(job.assignment("g2") == "1/4#1");
    for (const char* name : {"t1", "t2", "g1"}) job.succeed(name);
    CHECK(job.state.phase() == Phase::Running);
    job.succeed("g2");
    CHECK(job.state.phase() == Phase::Ended);
  }
  SUBCASE("gone") {
    job.leave("g2");
    job.fail_by("g1");
    CHECK(job.last<Restart>("t1")->role.empty());
  }
}

TEST_CASE("own roles: a node of it that goes, or does not come back in time, restarts all") {
  Mixed job = four();
  job.fail_by("g1");
  job.come("g1");
  SUBCASE("lost") {
    job.lose("g2");
    CHECK(job.last<Restart>("t1")->cause.kind == Cause::Kind::NodeLost);
  }
  SUBCASE("late") {
    while (job.state.phase() == Phase::Running) {
      REQUIRE(job.state.deadline().has_value());
      REQUIRE(*job.state.deadline() > job.now);
      job.pass(*job.state.deadline() - job.now);
    }
    CHECK(job.last<Restart>("t1")->cause.kind == Cause::Kind::Timeout);
    CHECK(!job.last<Restart>("t1")->attempt_spent);
  }
  CHECK(job.last<Restart>("t1")->role.empty());
}

TEST_CASE("own roles: a hang of the job, and a node that is left out, concern all") {
  Mixed job = four();
  job.fail_by("g1", spec::CauseClass::Hang, true);
  CHECK(job.last<Restart>("t1")->role.empty());

  Rules rules = own_generators(4, 9);
  rules.restart_rule = "gpu:exclude";
  Mixed other(rules);
  for (const char* name : {"g1", "g2", "t1", "t2"}) other.come(name);
  other.fail_by("g1", spec::CauseClass::Gpu);
  CHECK(other.last<Restart>("t1")->role.empty());
}

TEST_CASE("own roles: the delay of the policy is its own") {
  Rules rules = own_generators(4, 9);
  rules.restart_policy_auto = true;
  Mixed job(rules);
  for (const char* name : {"g1", "g2", "t1", "t2"}) job.come(name);
  job.fail_by("g1");
  job.come("g1"), job.come("g2");
  job.fail_by("g1");
  job.come("g1"), job.come("g2");
  CHECK(job.assignment("g1").empty());
  job.pass(1250ms);
  CHECK(job.assignment("g1") == "0/4#1");
}

TEST_CASE("own roles: a job that is preempted waits for no role that starts again") {
  Mixed job = four();
  job.fail_by("g1");
  job.come("g1");
  job.state.preempting({.kind = Cause::Kind::Preempted, .text = "preempted"}, job.now);
  job.come("g2");
  CHECK(job.round("g2") == nullptr);
  job.succeed("t1"), job.succeed("t2");
  CHECK(job.state.phase() == Phase::Ended);
}

TEST_CASE("own roles: what others prove of a lost node ends with their role") {
  // The last trainer has fallen silent. That the generators stop says nothing of its group.
  Rules rules = own_generators(2, 3);
  rules.min_nodes = 1;
  rules.last_call_timeout = 1s;
  Mixed job(rules);
  job.grace = 20s;
  job.come("g1"), job.come("t1");
  job.lose("t1", Loss::Silent);
  job.come("g1");
  job.pass(20s);
  CHECK(job.state.round_number() == 1);
  job.pass(2s);
  CHECK(job.assignment("g1") == "0/1#2");
}

TEST_CASE("own roles: an agent takes its own round again only when it was told to come back") {
  Membership member("i");
  Node self = make_node("g1");
  self.role = "generator";
  member.want(self);
  Round round;
  round.epoch = 1, round.number = 4, round.attempt = 2, round.spent = 3;
  member.sit(round);
  CHECK(member.previous().attempt == 3);
  round.again = true;
  CHECK(!member.is_started_again(round));
  CHECK(member.give_up({}, true));
  Restart spent;
  spent.attempt_spent = true;
  member.hear(spent);
  CHECK(!member.is_started_again(round));  // its group has not ended
  member.want(self);
  CHECK(member.is_started_again(round));
  CHECK(member.previous().attempt == 4);
  round.number = 3;
  CHECK(!member.is_started_again(round));
}
