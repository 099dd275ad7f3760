// SPDX-License-Identifier: Apache-2.0
// Members whose groups are being stopped, and of whom the coordinator loses sight.
#include "rendezvous/membership/state.hpp"
#include "unit/rendezvous/script.hpp"

#include <algorithm>
#include <cstdint>
#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

Rules fencing_rules(int min_nodes, int max_nodes, int max_restarts = 0) {
  Rules rules = make_rules(min_nodes, max_nodes, max_restarts);
  rules.reaction = 5s;
  rules.silence = 20s;
  rules.last_call_timeout = 2s;
  return rules;
}

/// a, b and c work; a has failed, b is back, c is being stopped and has said that it knows.
Script two_of_three_back() {
  Script job(fencing_rules(2, 3, 1));
  job.grace = 40s;
  for (const char* name : {"a", "b", "c"}) job.join(name);
  job.fail("a");
  job.acknowledge("b", 40s);
  job.acknowledge("c", 40s);
  job.join("a", {{1, 1}, 1, 3});
  job.join("b", {{1, 1}, 1, 3});
  CHECK(job.assignment("a") == "");
  return job;
}

}  // namespace

TEST_CASE("member fence: a member that saves is waited for without its connection") {
  Script job = two_of_three_back();
  SUBCASE("which was reset, for as long as it has said") {
    job.play("broken c | 39900ms | a: - | 100ms | 2s | a: 0/2#2");
  }
  SUBCASE("and takes its place when it comes back and says that it has ended") {
    job.play("broken c | join spare | 10s | join c@1.1/3*1 | a: 0/3#2 | c: 2/3#2");
  }
  SUBCASE("which was closed in order, and it comes back to say that it saves") {
    job.play(
        "closed c | 10ms | a: - | arrive c@1.1/3*1 30s | 20s | a: - | broken c | 9900ms | "
        "a: - | join c@1.1/3*1 | a: 0/3#2");
  }
  SUBCASE("which was closed in order, because it was killed") {
    job.play("closed c | return | a: 0/2#2");
  }
  SUBCASE("which was closed or reset, and then its processes are found to have ended") {
    const Peer peer = job.peers["c"];
    Loss loss = Loss::Closed;
    SUBCASE("closed") {}
    SUBCASE("reset") {
      loss = Loss::Broken;
    }
    job.lose("c", loss);
    job.play("a: -");
    job.state.depart(peer, "its processes have ended", job.now, Loss::Ended);
    if (loss == Loss::Broken) job.pass(2s);  // the last call, which a place to be kept had ended
    job.play("a: 0/2#2");
  }
}

TEST_CASE("member fence: one that came at work beside a round is waited for when that round ends") {
  Rules rules = fencing_rules(1, 2, 1);
  rules.join_timeout = 30s;
  Script job(rules);
  job.play("join a | 2s | a: 0/1#1");
  job.grace = 100s;  // of that one, not of the member
  job.play("arrive b@1.7/2 100s | fail a");
  job.grace = 0s;
  job.play("join a@1.1/1*1 | 90s | a: - | join b@1.7/2 | a: 0/2#8");
}

TEST_CASE("member fence: a node that crashed before it could hear the order delays nobody") {
  Script job(fencing_rules(2, 3, 1));
  job.grace = 40s;
  job.play("join a b c | fail a | stopping b 40s | join a@1.1/3*1 b@1.1/3*1 | silent c | a: 0/2#2");
}

TEST_CASE("member fence: a successor waits for a member that says it is at work") {
  Script job(fencing_rules(2, 2));
  job.grace = 40s;
  job.inherit({{1, 7}, 1, 2}, 60s, 2, 1);
  job.play("arrive b@1.7/2*1 30s | join x y | 29s | x: - | join b@1.7/2*1 | b: 0/2#8 | x: 1/2#8");
}

TEST_CASE("member fence: a successor waits for all but one of whom it has heard nothing") {
  for (const Way& way :
       {Way{"until they must have ended", "after 60s b: 0/3#8"},
        Way{"until the last but one has come", "10s | join c@1.7/3 | b: 0/3#8 | c: 1/3#8"},
        Way{"who is given a moment to follow",
            "arrive c@1.7/3 0s | join c@1.7/3 | b: - | follow | b: 0/3#8"}}) {
    Script job(fencing_rules(3, 3));
    job.grace = 40s;
    job.inherit({{1, 7}, 0, 3}, 120s, 3, 1);
    job.play("join x y b@1.7/3");
    job.play(way);
  }
}

TEST_CASE("member fence: whom a leader left behind is waited for, and nobody else") {
  for (const Way& way : {Way{"until its time is over", "29900ms | x: - | 100ms"},
                         Way{"until it is heard", "arrive b@1.7/2 20s | x: - | end b"}}) {
    Script job(fencing_rules(2, 2));
    job.inherit({{1, 7}, 0, 2}, 0s, Survivors{1, {1, job.now + 30s}}, 0);
    job.play("join x y");
    job.play(way);
    job.play("x: 0/2#8");
  }
}

TEST_CASE(
    "member fence: whoever had stopped when its leader went does not stand for one who had not") {
  for (const Way& way :
       {Way{"until its time is over", "29s | a: - | 1s"}, Way{"until it comes", "join b@1.7/3"}}) {
    Script job(fencing_rules(2, 2));
    job.grace = 40s;
    job.inherit({{1, 7}, 0, 3}, 0s, Survivors{2, {1, job.now + 30s}}, 0);
    job.play("join x a@1.7/3 | a: -");
    job.play(way);
    job.play("a: 0/2#8");
  }
}

TEST_CASE(
    "member fence: after a crash while a round was formed, who had stopped is not waited for") {
  Script job(fencing_rules(3, 3));
  job.grace = 40s;
  SUBCASE("if they all had") {
    job.inherit({{1, 7}, 0, 4}, 0s, Survivors{3, {}}, 1);
    job.play("join x y a@1.7/4 | a: 0/3#8");
  }
  SUBCASE("and others only as long as they may take, or until all but the leader are here") {
    job.inherit({{1, 7}, 0, 4}, 0s, Survivors{3, {2, job.now + 30s}}, 1);
    job.play("join x y a@1.7/4 | a: -");
    SUBCASE("the former") {
      job.play("29s | a: - | 1s");
    }
    SUBCASE("the latter") {
      job.play("join b@1.7/4 | a: - | follow");
    }
    job.play("a: 0/3#8");
  }
  SUBCASE("nor is one leader alone that may be saving taken for nobody") {
    job.inherit({{1, 7}, 0, 1}, 0s, Survivors{1, {1, job.now + 30s}}, 1);
    job.play("join x y z | x: - | 30s | x: 0/3#8");
  }
}

TEST_CASE("member fence: a spare tells a store that was begun again of the world that it knows") {
  for (const Way& way :
       {Way{"its members come back",
            "arrive a@1.7/2*1 40s | arrive b@1.7/2*1 40s | join b@1.7/2*1 | b: - | join "
            "a@1.7/2*1 | a: 0/2#8 | a: attempt 1"},
        Way{"nobody of it comes", "60s | x: 0/2#8"}}) {
    Rules rules = fencing_rules(2, 2);
    rules.hosted = false;
    Script job(rules);
    job.grace = 40s;
    job.state.hear_of({{1, 7}, 1, 2}, 40s, job.now);
    job.play("join x y | x: -");
    job.play(way);
  }
}

namespace {

/// a and b work in round 1 when somebody comes that remembers another one.
Script joined_by(std::int64_t remembered, int max_restarts) {
  Script job(fencing_rules(2, 2, max_restarts));
  for (const char* name : {"a", "b"}) job.join(name);
  job.join("late", {{1, remembered}, 0, 2});
  return job;
}

void fail_round(Script& job, const std::string& name) {
  job.state.fail(job.peers[name], 1, {}, job.now);
  job.read();
}

constexpr std::int64_t kRemembered[] = {0, 1, 2, 9};

}  // namespace

TEST_CASE("member fence: a round that runs keeps its number, whatever newcomers remember") {
  for (const std::int64_t remembered : kRemembered) {
    CAPTURE(remembered);
    Script job = joined_by(remembered, 1);
    for (const char* name : {"a", "b"}) job.state.succeed(job.peers[name], 1, job.now);
    job.read();
    CHECK(job.last<Done>("a") != nullptr);
    CHECK(job.last<Done>("late") != nullptr);
  }
}

TEST_CASE("member fence: the next round has a number that nobody has seen") {
  for (const std::int64_t remembered : kRemembered) {
    CAPTURE(remembered);
    Script job = joined_by(remembered, 1);
    fail_round(job, "a");
    for (const char* name : {"a", "b"}) job.join(name, {{1, 1}, 1, 2});
    REQUIRE(job.last<RoundReady>("a") != nullptr);
    CHECK(job.last<RoundReady>("a")->round.number == std::max<std::int64_t>(remembered, 1) + 1);
    CHECK(job.last<RoundReady>("a")->round.attempt == 1);
  }
}

TEST_CASE("member fence: newcomers that remember do not hold up a verdict") {
  for (const std::int64_t remembered : kRemembered) {
    CAPTURE(remembered);
    Script job = joined_by(remembered, 0);
    fail_round(job, "a");
    job.join("later", {{1, remembered + 1}, 0, 2});
    fail_round(job, "b");
    CHECK(job.last<Done>("b") != nullptr);
  }
}

TEST_CASE("member fence: the verdict reaches a member that saves") {
  Script(fencing_rules(1, 1)).play("join a | arrive b@1.1/2 30s | finish a | b: well");
}

TEST_CASE("member fence: a member that comes back beside its dead connection is not left out") {
  Script job(fencing_rules(1, 2, 1));
  job.play("join a b | fail a | join a@1.1/2*1 | a: -");
  job.peers.erase("b");  // over a new connection
  job.play("join b@1.1/2*1 | a: 0/2#2 | b: 1/2#2");
}
