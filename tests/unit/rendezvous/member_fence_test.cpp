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
    job.lose("c", Loss::Broken);
    job.pass(39900ms);
    CHECK(job.assignment("a") == "");
    job.pass(100ms);
    job.pass(2s);
    CHECK(job.assignment("a") == "0/2#2");
  }
  SUBCASE("and takes its place when it comes back and says that it has ended") {
    job.lose("c", Loss::Broken);
    job.join("spare");
    job.pass(10s);
    job.join("c", {{1, 1}, 1, 3});
    CHECK(job.assignment("a") == "0/3#2");
    CHECK(job.assignment("c") == "2/3#2");
  }
  SUBCASE("which was closed in order, and it comes back to say that it saves") {
    job.lose("c", Loss::Closed);
    job.pass(10ms);
    CHECK(job.assignment("a") == "");
    job.arrive_stopping("c", {{1, 1}, 1, 3}, 30s);
    job.pass(20s);
    CHECK(job.assignment("a") == "");
    job.lose("c", Loss::Broken);
    job.pass(9900ms);
    CHECK(job.assignment("a") == "");
    job.join("c", {{1, 1}, 1, 3});
    CHECK(job.assignment("a") == "0/3#2");
  }
  SUBCASE("which was closed in order, because it was killed") {
    job.lose("c", Loss::Closed);
    job.pass(kTimeToReturn);
    CHECK(job.assignment("a") == "0/2#2");
  }
  SUBCASE("which was closed or reset, and then its processes are found to have ended") {
    const Peer peer = job.peers["c"];
    Loss loss = Loss::Closed;
    SUBCASE("closed") {}
    SUBCASE("reset") {
      loss = Loss::Broken;
    }
    job.lose("c", loss);
    CHECK(job.assignment("a") == "");
    job.state.depart(peer, "its processes have ended", job.now, Loss::Ended);
    job.read();
    if (loss == Loss::Broken) job.pass(2s);  // the last call, which a place to be kept had ended
    CHECK(job.assignment("a") == "0/2#2");
  }
}

TEST_CASE("member fence: one that came at work beside a round is waited for when that round ends") {
  Rules rules = fencing_rules(1, 2, 1);
  rules.join_timeout = 30s;
  Script job(rules);
  job.join("a");
  job.pass(2s);
  CHECK(job.assignment("a") == "0/1#1");
  job.grace = 100s;  // of that one, not of the member
  job.arrive_stopping("b", {{1, 7}, 0, 2}, 100s);
  job.fail("a");
  job.grace = 0s;
  job.join("a", {{1, 1}, 1, 1});
  job.pass(90s);
  CHECK(job.assignment("a") == "");
  job.join("b", {{1, 7}, 0, 2});
  CHECK(job.assignment("a") == "0/2#8");
}

TEST_CASE("member fence: a node that crashed before it could hear the order delays nobody") {
  Script job(fencing_rules(2, 3, 1));
  job.grace = 40s;
  for (const char* name : {"a", "b", "c"}) job.join(name);
  job.fail("a");
  job.acknowledge("b", 40s);
  job.join("a", {{1, 1}, 1, 3});
  job.join("b", {{1, 1}, 1, 3});
  job.lose("c", Loss::Silent);
  CHECK(job.assignment("a") == "0/2#2");
}

TEST_CASE("member fence: a successor waits for a member that says it is at work") {
  Script job(fencing_rules(2, 2));
  job.grace = 40s;
  MemberFence fence;
  fence.expect({1, 7}, 2, 1);
  job.state.inherit({{{1, 7}, 1, 2}, job.now + 60s, fence});
  job.arrive_stopping("b", {{1, 7}, 1, 2}, 30s);
  job.join("x");
  job.join("y");
  job.pass(29s);
  CHECK(job.assignment("x") == "");
  job.join("b", {{1, 7}, 1, 2});
  CHECK(job.assignment("b") == "0/2#8");
  CHECK(job.assignment("x") == "1/2#8");
}

TEST_CASE("member fence: a successor waits for all but one of whom it has heard nothing") {
  Script job(fencing_rules(3, 3));
  job.grace = 40s;
  MemberFence fence;
  fence.expect({1, 7}, 3, 1);
  job.state.inherit({{{1, 7}, 0, 3}, job.now + 120s, fence});
  for (const char* name : {"x", "y"}) job.join(name);
  job.join("b", {{1, 7}, 0, 3});
  SUBCASE("until they must have ended") {
    CHECK(job.assignment_after(60s, "b") == "0/3#8");
  }
  SUBCASE("until the last but one has come") {
    job.pass(10s);
    job.join("c", {{1, 7}, 0, 3});
    CHECK(job.assignment("b") == "0/3#8");
    CHECK(job.assignment("c") == "1/3#8");
  }
  SUBCASE("who is given a moment to follow") {
    job.arrive_stopping("c", {{1, 7}, 0, 3}, 0s);
    job.join("c", {{1, 7}, 0, 3});
    CHECK(job.assignment("b") == "");
    job.pass(kTimeToFollow);
    CHECK(job.assignment("b") == "0/3#8");
  }
}

TEST_CASE("member fence: whom a leader left behind is waited for, and nobody else") {
  Script job(fencing_rules(2, 2));
  MemberFence fence;
  fence.expect({1, 7}, Survivors{1, {1, job.now + 30s}}, 0);
  job.state.inherit({{{1, 7}, 0, 2}, job.now, fence});
  job.join("x");
  job.join("y");
  SUBCASE("until its time is over") {
    job.pass(29900ms);
    CHECK(job.assignment("x") == "");
    job.pass(100ms);
  }
  SUBCASE("until it is heard") {
    job.arrive_stopping("b", {{1, 7}, 0, 2}, 20s);
    CHECK(job.assignment("x") == "");
    job.lose("b", Loss::Ended);
  }
  CHECK(job.assignment("x") == "0/2#8");
}

TEST_CASE(
    "member fence: whoever had stopped when its leader went does not stand for one who had not") {
  Script job(fencing_rules(2, 2));
  job.grace = 40s;
  MemberFence fence;
  fence.expect({1, 7}, Survivors{2, {1, job.now + 30s}}, 0);
  job.state.inherit({{{1, 7}, 0, 3}, job.now, fence});
  job.join("x");
  job.join("a", {{1, 7}, 0, 3});
  CHECK(job.assignment("a") == "");
  SUBCASE("until its time is over") {
    job.pass(29s);
    CHECK(job.assignment("a") == "");
    job.pass(1s);
  }
  SUBCASE("until it comes") {
    job.join("b", {{1, 7}, 0, 3});
  }
  CHECK(job.assignment("a") == "0/2#8");
}

TEST_CASE(
    "member fence: after a crash while a round was formed, who had stopped is not waited for") {
  Script job(fencing_rules(3, 3));
  job.grace = 40s;
  MemberFence fence;
  SUBCASE("if they all had") {
    fence.expect({1, 7}, Survivors{3, {}}, 1);
    job.state.inherit({{{1, 7}, 0, 4}, job.now, fence});
    for (const char* name : {"x", "y"}) job.join(name);
    job.join("a", {{1, 7}, 0, 4});
    CHECK(job.assignment("a") == "0/3#8");
  }
  SUBCASE("and others only as long as they may take, or until all but the leader are here") {
    fence.expect({1, 7}, Survivors{3, {2, job.now + 30s}}, 1);
    job.state.inherit({{{1, 7}, 0, 4}, job.now, fence});
    for (const char* name : {"x", "y"}) job.join(name);
    job.join("a", {{1, 7}, 0, 4});
    CHECK(job.assignment("a") == "");
    SUBCASE("the former") {
      job.pass(29s);
      CHECK(job.assignment("a") == "");
      job.pass(1s);
    }
    SUBCASE("the latter") {
      job.join("b", {{1, 7}, 0, 4});
      CHECK(job.assignment("a") == "");
      job.pass(kTimeToFollow);
    }
    CHECK(job.assignment("a") == "0/3#8");
  }
  SUBCASE("nor is one leader alone that may be saving taken for nobody") {
    fence.expect({1, 7}, Survivors{1, {1, job.now + 30s}}, 1);
    job.state.inherit({{{1, 7}, 0, 1}, job.now, fence});
    for (const char* name : {"x", "y", "z"}) job.join(name);
    CHECK(job.assignment("x") == "");
    job.pass(30s);
    CHECK(job.assignment("x") == "0/3#8");
  }
}

TEST_CASE("member fence: a spare tells a store that was begun again of the world that it knows") {
  Rules rules = fencing_rules(2, 2);
  rules.hosted = false;
  Script job(rules);
  job.grace = 40s;
  job.state.hear_of({{1, 7}, 1, 2}, 40s, job.now);
  for (const char* name : {"x", "y"}) job.join(name);
  CHECK(job.assignment("x") == "");
  SUBCASE("its members come back") {
    job.arrive_stopping("a", {{1, 7}, 1, 2}, 40s);
    job.arrive_stopping("b", {{1, 7}, 1, 2}, 40s);
    job.join("b", {{1, 7}, 1, 2});
    CHECK(job.assignment("b") == "");
    job.join("a", {{1, 7}, 1, 2});
    CHECK(job.assignment("a") == "0/2#8");
    CHECK(job.last<RoundReady>("a")->round.attempt == 1);
  }
  SUBCASE("nobody of it comes") {
    job.pass(60s);
    CHECK(job.assignment("x") == "0/2#8");
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
    const auto* ready = job.last<RoundReady>("a");
    REQUIRE(ready != nullptr);
    CHECK(ready->round.number == std::max<std::int64_t>(remembered, 1) + 1);
    CHECK(ready->round.attempt == 1);
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
  Script job(fencing_rules(1, 1));
  job.join("a");
  job.arrive_stopping("b", {{1, 1}, 0, 2}, 30s);
  job.succeed("a");
  REQUIRE(job.last<Done>("b") != nullptr);
  CHECK(!job.last<Done>("b")->failed);
}

TEST_CASE("member fence: a member that comes back beside its dead connection is not left out") {
  Script job(fencing_rules(1, 2, 1));
  for (const char* name : {"a", "b"}) job.join(name);
  job.fail("a");
  job.join("a", {{1, 1}, 1, 2});
  CHECK(job.assignment("a") == "");
  job.peers.erase("b");  // over a new connection
  job.join("b", {{1, 1}, 1, 2});
  CHECK(job.assignment("a") == "0/2#2");
  CHECK(job.assignment("b") == "1/2#2");
}
