// SPDX-License-Identifier: Apache-2.0
// What the restart policy and a preemption change in the rounds of a job.
#include "rendezvous/membership/state.hpp"
#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>
#include <memory>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

Rules automatic(int min_nodes, int max_nodes, int max_restarts) {
  Rules rules = make_rules(min_nodes, max_nodes, max_restarts);
  rules.restart_policy_auto = true;
  return rules;
}

/// Nodes `all` stop and come back; the round after that is given out once a delay is over.
void come_back(Script& job, const std::vector<std::string>& all) {
  for (const auto& name : all) job.join(name, {{1, job.state.round_number()}, 0, 0});
  job.pass(2s);
}

}  // namespace

TEST_CASE("policy: without enough others a node that is to be left out takes part") {
  Script job(automatic(2, 2, 9));
  job.play("join bad good");
  for (int round = 1; round < 4; ++round) {
    CHECK(job.state.round_number() == round);
    job.fail_of_gpu("bad");
    come_back(job, {"bad", "good"});
    job.pass(10s);
  }
  CHECK(job.state.round_number() == 4);
}

TEST_CASE("policy: the second restart without progress waits, and nothing else is late for that") {
  Script job(automatic(1, 1, 9));
  job.play("join a | fail a | join a@1.1/0");
  // the first one is at once
  job.play("a: 0/1#2 | fail a | join a@1.2/0");
  CHECK(job.assignment("a").empty());
  REQUIRE(job.state.deadline().has_value());
  job.play("due 1250ms | 1250ms | a: 0/1#3");
}

TEST_CASE("policy: a deterministic error ends the job with its rule, and no requeue helps") {
  Script job(automatic(1, 1, 9));
  job.play("join a");
  Cause cause;
  cause.node = "a_1_0", cause.fingerprint = "KeyError@a.py:3", cause.step = 7;
  for (int i = 0; i < 2; ++i) {
    job.state.fail(job.peers["a"], job.state.round_number(), cause, job.now);
    job.read();
    if (i == 0) come_back(job, {"a"}), job.pass(5s);  // nothing that passes explains both
  }
  job.play("1s | a: done");
  CHECK(job.last<Done>("a")->cause.hopeless);
  CHECK(job.last<Done>("a")->cause.rule.starts_with("auto: twice the same KeyError@a.py:3"));
  REQUIRE(job.last<Done>("a")->memory);
  CHECK(job.last<Done>("a")->memory->entries.size() == 2);
}

TEST_CASE("policy: a crash on the only machine of a job needs no other one to be deterministic") {
  for (const bool alone : {true, false}) {
    Rules rules = automatic(1, 1, 9);
    State job(rules, "job");
    Node node = make_node("a");
    node.address = "127.0.0.1", node.host = alone ? "" : "here";
    int starts = 0;
    for (Duration time = 0s; job.phase() != Phase::Ended && time < 1h; time += 2min) {
      job.join(1, node, {}, TimePoint(time));
      job.tick(TimePoint(time + 1min)), ++starts;
      Cause cause{.node = node.id, .fingerprint = "SIGSEGV"};
      cause.what = spec::CauseClass::Crash, cause.step = 3;
      job.fail(1, job.round_number(), cause, TimePoint(time + 1min));
    }
    CHECK(starts == (alone ? 2 : 3));
  }
}

TEST_CASE("policy: the coordinator's own machine is held to account under its real address") {
  State job(automatic(1, 2, 9), "job");
  Node own = make_node("a"), other = make_node("b");
  own.address = "127.0.0.1", own.host = "here";
  other.address = "10.0.0.2", other.host = "there";
  job.set_reachable("10.0.0.1");
  job.join(1, own, {}, TimePoint()), job.join(2, other, {}, TimePoint());
  Cause cause{.node = own.id};
  cause.what = spec::CauseClass::Gpu;
  job.fail(1, job.round_number(), cause, TimePoint());
  REQUIRE(job.restart_memory(TimePoint()).marks.size() == 1);
  CHECK(job.restart_memory(TimePoint()).marks.front().place == "here (10.0.0.1)");
}

TEST_CASE("policy: a rule about nodes that go can end the job") {
  Rules rules = make_rules(1, 2);
  rules.restart_rule = "node-lost:fail";
  Script job(rules);
  job.play("join a b | end b | a: done");
  CHECK(job.last<Done>("a")->cause.hopeless);
}

TEST_CASE("policy: what a node remembers counts for the coordinator after this one") {
  Script first(automatic(1, 1, 2));
  first.join("a");
  first.fail_of_gpu("a");
  const auto* told = first.last<Restart>("a");
  REQUIRE(told != nullptr);
  REQUIRE(told->memory);
  Script next(automatic(1, 1, 2));
  Node node = make_node("a");
  node.memory = told->memory;
  next.peers["a"] = 1;
  next.state.join(1, node, {{1, 1}, 1, 1}, next.now);
  next.read();
  CHECK(next.state.restart_memory(next.now).entries.size() == 1);
  CHECK(next.state.attempt() == 1);
  const auto* ready = next.last<RoundReady>("a");
  if (ready != nullptr) CHECK(ready->round.members.front().memory == nullptr);
}

TEST_CASE("policy: torchrun's has no memory, so that a message is as before") {
  Script job(make_rules(1, 1, 2));
  job.play("join a | fail a | a: restart");
  CHECK(job.last<Restart>("a")->memory == nullptr);
  CHECK(job.last<Restart>("a")->delay == 0s);
}

TEST_CASE("preempted: however workers end, the job ends as preempted, without a restart") {
  Script job(make_rules(2, 2, 5));
  job.play("join a b");
  job.state.preempting({.kind = Cause::Kind::Preempted, .text = "preempted (x)"}, job.now);
  job.fail("a", -15);
  job.play("a: not done | finish b");
  for (const char* name : {"a", "b"}) {
    const auto* done = job.last<Done>(name);
    REQUIRE(done != nullptr);
    CHECK(done->failed);
    CHECK(done->cause.kind == Cause::Kind::Preempted);
  }
  job.play("attempt 0");
}

TEST_CASE("preempted: a job that does not run ends at once, one that has saved at that moment") {
  Script waiting(make_rules(2, 2));
  waiting.join("a");
  waiting.state.preempting({.kind = Cause::Kind::Preempted, .text = "x"}, waiting.now);
  waiting.read();
  CHECK(waiting.last<Done>("a") != nullptr);
  Script running(make_rules(1, 1));
  running.join("a");
  running.state.preempting({.kind = Cause::Kind::Preempted, .text = "x"}, running.now);
  running.state.preempted("saved at step 3", running.now);
  running.read();
  REQUIRE(running.last<Done>("a") != nullptr);
  CHECK(running.last<Done>("a")->cause.text == "saved at step 3");
}

TEST_CASE(
    "preempted: a node whose connection breaks ends neither the others' save nor begins one") {
  Script job(make_rules(2, 3, 5));
  job.join("a"), job.join("b"), job.join("c");
  job.state.preempting({.kind = Cause::Kind::Preempted, .text = "x"}, job.now);
  job.peers["b"] = ++job.last_peer;  // over a new connection, while the old one seems to live
  job.play("join b@1.1/3 | a: 0/3#1");
  job.succeed("a"), job.succeed("c");
  for (const char* name : {"a", "b", "c"}) CHECK(job.last<Done>(name) != nullptr);
  Script cut(make_rules(1, 2, 5));
  cut.join("a"), cut.join("b");
  cut.state.preempting({.kind = Cause::Kind::Preempted, .text = "x"}, cut.now);
  cut.state.suspend("another one may be elected", cut.now);
  cut.read();
  REQUIRE(cut.last<Done>("a") != nullptr);
  CHECK(cut.last<Done>("a")->cause.kind == Cause::Kind::Preempted);
  CHECK(cut.state.attempt() == 0);
}
