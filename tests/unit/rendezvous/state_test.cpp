// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/state.hpp"

#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

TEST_CASE("rendezvous: with the minimum there a last call passes, which late nodes do not extend") {
  Script job(make_rules(1, 3));
  job.join("a");
  job.pass(29s);
  job.join("b");
  CHECK(job.assignment("a") == "");
  job.pass(1s);
  CHECK(job.assignment("a") == "0/2#1");
  CHECK(job.assignment("b") == "1/2#1");
}

TEST_CASE("rendezvous: a last call ends when the minimum is lost, and begins anew") {
  Script job(make_rules(2, 3));
  job.join("a");
  job.join("b");
  job.pass(20s);
  job.lose("b");
  job.pass(20s);
  job.join("c");
  CHECK(job.assignment("a") == "");
  job.pass(30s);
  CHECK(job.assignment("a") == "0/2#1");
}

TEST_CASE("rendezvous: whoever waits is told who is missing") {
  Script job(make_rules(2, 2));
  job.join("a");
  job.pass(1s);
  const auto* progress = job.last<Progress>("a");
  REQUIRE(progress != nullptr);
  CHECK(progress->present == 1);
  CHECK(progress->wanted == 2);
  CHECK(progress->text == "1 of 2 nodes here (a); waiting for 1 more, at most 9 min 59 s");
}

TEST_CASE("rendezvous: a node that stays alone is told so after join_timeout") {
  Script job(make_rules(2, 2));
  job.join("a");
  job.pass(600s);
  const auto* done = job.last<Done>("a");
  REQUIRE(done != nullptr);
  CHECK(done->failed);
  CHECK(done->cause.kind == Cause::Kind::Timeout);
  CHECK(done->cause.text == "1 node (a) of at least 2 came within 10 min 00 s (join_timeout)");
}

TEST_CASE("rendezvous: a second report of the same failed round costs nothing") {
  Script job(make_rules(2, 2, 2));
  job.join("a");
  job.join("b");
  const auto round = job.state.round_number();
  job.fail("a");
  job.state.fail(job.peers["b"], round, {}, job.now);
  job.join("a");
  job.join("b");
  job.state.fail(job.peers["b"], round, {}, job.now);
  job.read();
  CHECK(job.assignment("b") == "1/2#2");
  CHECK(job.state.attempt() == 1);
}

TEST_CASE(
    "rendezvous: a node that fails of its own is the culprit, though its victim was quicker") {
  for (const int restarts : {0, 1}) {
    CAPTURE(restarts);
    Script job(make_rules(3, 3, restarts));
    for (const char* name : {"a", "b", "c"}) job.join(name);
    job.fail_of_peer("a");
    CHECK(job.last<RoundReady>("b") != nullptr);
    CHECK(*job.state.deadline() == job.now + Rules().culprit_wait);
    job.pass(2s);
    job.fail_of_peer("c");
    job.fail("b", 7);
    job.pass(50ms);
    for (const char* name : {"a", "b", "c"}) {
      if (restarts == 0) {
        REQUIRE(job.last<Done>(name) != nullptr);
        CHECK(job.last<Done>(name)->cause.node == "b");
      } else {
        REQUIRE(job.last<Restart>(name) != nullptr);
        CHECK(job.last<Restart>(name)->cause.exit_code == 7);
      }
    }
    CHECK(job.state.attempt() == restarts);
  }
}

TEST_CASE("rendezvous: a victim is told as the cause where no culprit shows itself") {
  SUBCASE("in time") {
    Script job(make_rules(2, 2, 1));
    job.join("a"), job.join("b");
    job.fail_of_peer("a");
    job.pass(Rules().culprit_wait - 1ms);
    CHECK(job.last<Restart>("b") == nullptr);
    job.pass(1ms);
    REQUIRE(job.last<Restart>("b") != nullptr);
    CHECK(job.last<Restart>("b")->cause.node == "a");
  }
  SUBCASE("since all blame each other") {
    Script job(make_rules(2, 2, 1));
    job.join("a"), job.join("b");
    job.fail_of_peer("a");
    job.fail_of_peer("b");
    REQUIRE(job.last<Restart>("b") != nullptr);
    CHECK(job.last<Restart>("b")->cause.node == "a");
  }
  SUBCASE("and a node that is lost meanwhile is one") {
    Script job(make_rules(2, 2, 1));
    job.join("a"), job.join("b");
    job.fail_of_peer("a");
    job.lose("b");
    REQUIRE(job.last<Restart>("a") != nullptr);
    CHECK(job.last<Restart>("a")->cause.kind == Cause::Kind::NodeLost);
    CHECK(job.state.attempt() == 0);
  }
  SUBCASE("and after the verdict a late one is still the culprit") {
    Script job(make_rules(2, 2));
    job.join("a"), job.join("b");
    job.fail_of_peer("a");
    job.pass(Rules().culprit_wait);
    job.fail("b", 7);
    REQUIRE(job.last<Done>("a") != nullptr);
    CHECK(job.last<Done>("a")->cause.node == "b");
  }
}

TEST_CASE("rendezvous: the time limit is named as the back end's key") {
  Rules rules = make_rules(2, 2);
  rules.fixed_ranks = true;
  Script job(rules);
  job.join("a", {}, 0);
  job.pass(600s);
  REQUIRE(job.last<Done>("a") != nullptr);
  CHECK(job.last<Done>("a")->cause.text.ends_with("within 10 min 00 s (timeout)"));
}

TEST_CASE("rendezvous: the verdict does not wait when everybody has reported") {
  Script job(make_rules(2, 2));
  job.join("a");
  job.join("b");
  job.succeed("a");
  job.fail("b");
  CHECK(job.last<Done>("a") != nullptr);
  CHECK(job.last<Done>("a")->failed);
}

TEST_CASE("rendezvous: a node that has finished and goes leaves the others in peace") {
  Script job(make_rules(1, 2, 1));
  job.join("a");
  job.join("b");
  job.succeed("a");
  job.lose("a");
  CHECK(job.assignment("b") == "1/2#1");
  job.join("c");
  CHECK(job.last<Spare>("c") != nullptr);
  job.pass(5s);
  CHECK(job.assignment("b") == "1/2#1");
  job.succeed("b");
  CHECK(!job.last<Done>("b")->failed);
  CHECK(!job.last<Done>("c")->failed);
}

TEST_CASE("rendezvous: a lost node shrinks the world at once and costs no restart") {
  Script job(make_rules(2, 3, 1));
  for (const char* name : {"a", "b", "c"}) job.join(name);
  job.lose("a");
  const auto* restart = job.last<Restart>("b");
  REQUIRE(restart != nullptr);
  CHECK(!restart->attempt_spent);
  CHECK(restart->restarts_left == 1);
  CHECK(restart->cause.kind == Cause::Kind::NodeLost);
  CHECK(restart->cause.text == "node a_1_0 was lost: connection reset");
  job.join("b");
  job.join("c");
  CHECK(job.assignment("b") == "0/2#2");
  CHECK(job.last<RoundReady>("b")->round.attempt == 0);
}

TEST_CASE("rendezvous: a survivor that finds no replacement gives up after join_timeout") {
  Script job(make_rules(2, 2, 3));
  job.join("a");
  job.join("b");
  job.lose("a");
  job.join("b");
  job.pass(600s);
  REQUIRE(job.last<Done>("b") != nullptr);
  CHECK(job.last<Done>("b")->cause.kind == Cause::Kind::Timeout);
}

TEST_CASE("rendezvous: newcomers are collected while training goes on") {
  Script job(make_rules(1, 8));
  job.join("a");
  job.pass(30s);
  job.join("b");
  CHECK(job.assignment("a") == "0/1#1");
  job.pass(500ms);
  job.join("c");
  job.pass(500ms);
  CHECK(job.last<Restart>("a") != nullptr);
  job.join("a");
  CHECK(job.assignment("c") == "2/3#2");
}

TEST_CASE("rendezvous: a spare does not take the place of a member that is still stopping") {
  Script job(make_rules(1, 2, 1));
  for (const char* name : {"a", "b", "c"}) job.join(name);
  job.fail("a");
  job.join("a");
  job.pass(60s);
  CHECK(job.last<RoundReady>("c") == nullptr);
  job.join("b");
  CHECK(job.assignment("a") == "0/2#2");
  CHECK(job.assignment("b") == "1/2#2");
}

TEST_CASE("rendezvous: an agent that never stops its workers is left behind after join_timeout") {
  Script job(make_rules(1, 2, 1));
  job.join("a");
  job.join("b");
  job.fail("a");
  job.join("a");
  job.pass(600s);
  CHECK(job.assignment("a") == "0/1#2");
  REQUIRE(job.last<Lost>("b") != nullptr);
  CHECK(job.state.roster().size() == 1);
}

TEST_CASE("rendezvous: the same agent over a new connection replaces the old one") {
  Script job(make_rules(2, 2));
  job.join("a");
  job.join("b");
  job.peers["again"] = 77;
  job.state.join(77, make_node("a"), {}, job.now);
  job.read();
  CHECK(job.last<Restart>("b")->cause.kind == Cause::Kind::NodeLost);
  job.join("b");
  CHECK(job.assignment("again") == "0/2#2");
}

TEST_CASE("rendezvous: agents with the same id but another instance are two nodes") {
  Script job(make_rules(2, 2));
  for (const Peer peer : {Peer{1}, Peer{2}}) {
    Node node = make_node("localhost");
    node.instance = std::string(1, static_cast<char>('x' + peer));
    job.peers[node.instance] = peer;
    job.state.join(peer, node, {}, job.now);
  }
  job.read();
  CHECK(job.assignment("y") == "0/2#1");
  CHECK(job.assignment("z") == "1/2#1");
}

TEST_CASE("rendezvous: node 0's own loopback is no master for nodes of other machines") {
  Rules rules = make_rules(2, 2);
  rules.fixed_ranks = true;
  Script job(rules, "localhost", 29500);
  job.join("127.0.0.1", {}, 0);
  SUBCASE("and gives way to the address that they have come to") {
    job.state.set_reachable("10.0.0.1");
    job.join("10.0.0.2", {}, 1);
    REQUIRE(job.last<RoundReady>("10.0.0.2") != nullptr);
    CHECK(job.last<RoundReady>("10.0.0.2")->round.master_addr == "10.0.0.1");
    CHECK(job.last<RoundReady>("127.0.0.1")->round.master_port == 29500);
  }
  SUBCASE("but it is for those of this one") {
    job.join("127.0.0.2", {}, 1);
    REQUIRE(job.last<RoundReady>("127.0.0.2") != nullptr);
    CHECK(job.last<RoundReady>("127.0.0.2")->round.master_addr == "localhost");
  }
}

TEST_CASE("rendezvous: who replaces a dead node of a fixed rank is admitted when that is noticed") {
  Rules rules = make_rules(2, 2);
  rules.fixed_ranks = true;
  Script job(rules);
  job.join("a", {}, 0);
  job.join("b", {}, 1);
  REQUIRE(job.assignment("b") == "1/2#1");
  job.join("c", {}, 1);
  job.hear("a");
  job.hear("c");
  REQUIRE(job.last<Progress>("c") != nullptr);
  SUBCASE("it falls silent") {
    job.lose("b", Loss::Silent);
    CHECK(job.last<Restart>("a") != nullptr);
    job.join("a", {}, 0);
    CHECK(job.assignment("a") == "0/2#2");
    CHECK(job.assignment("c") == "1/2#2");
  }
  SUBCASE("it says goodbye") {
    job.leave("b");
    job.join("a", {}, 0);
    CHECK(job.assignment("c") == "1/2#2");
  }
  SUBCASE("its replacement goes first") {
    job.lose("c");
    job.lose("b");
    job.join("a", {}, 0);
    CHECK(job.assignment("a") == "");
    CHECK(job.state.roster().size() == 1);
  }
  SUBCASE("the job ends first") {
    job.fail("a");
    job.fail("b");
    REQUIRE(job.last<Done>("c") != nullptr);
    CHECK(job.last<Done>("c")->failed);
  }
}

TEST_CASE("rendezvous: whose group is being stopped claims no fixed rank before it has ended") {
  Rules rules = make_rules(2, 2);
  rules.fixed_ranks = true;
  Script job(rules);
  job.join("a", {}, 0);
  job.join("b", {}, 1);
  REQUIRE(job.assignment("b") == "1/2#1");
  job.lose("b", Loss::Silent);
  job.join("c", {}, 1);
  // The one that was replaced is back, and its group is still at work.
  Node old = make_node("b");
  old.node_rank = 1;
  job.peers["b"] = ++job.last_peer;
  job.state.arrive_stopping(job.peers["b"], old, {{1, 1}, 0, 2}, 10s, job.now);
  job.read();
  job.leave("c");
  job.join("a", {}, 0);
  CHECK(job.assignment("a") == "");
  job.join("b", {{1, 1}, 0, 2}, 1);
  CHECK(job.assignment("a") == "0/2#2");
  CHECK(job.assignment("b") == "1/2#2");
}

TEST_CASE("rendezvous: a new coordinator goes on where the last one stopped") {
  Script job(make_rules(1, 4, 3));
  job.state.set_epoch(9);
  const PreviousWorld previous{.id = {1, 5}, .attempt = 2, .nodes = 3};
  job.join("a", previous);
  job.join("b", previous);
  CHECK(job.assignment("a") == "");
  job.pass(1s);
  CHECK(job.assignment("a") == "0/2#6");
  CHECK(job.last<RoundReady>("a")->round.attempt == 2);
  CHECK(job.last<RoundReady>("a")->round.epoch == 9);
}

TEST_CASE("rendezvous: a coordinator that is not sure of its election forms no round") {
  Script job(make_rules(1, 2));
  job.state.hold(true, job.now);
  job.join("a");
  job.join("b");
  CHECK(job.assignment("a") == "");
  job.pass(60s);
  CHECK(job.assignment("a") == "");
  job.state.hold(false, job.now);
  job.read();
  CHECK(job.assignment("a") == "0/2#1");
}

TEST_CASE("rendezvous: who comes when the job is over hears so") {
  Script job(make_rules(1, 1));
  job.join("a");
  job.succeed("a");
  job.join("b");
  const auto* done = job.last<Done>("b");
  REQUIRE(done != nullptr);
  CHECK(done->failed);
  CHECK(done->cause.kind == Cause::Kind::Closed);
  CHECK(done->cause.text == "the job \"job\" is already over; start it under another --rdzv-id");
}

TEST_CASE("rendezvous: a member that joins by its own will restarts the world") {
  Script job(make_rules(2, 2));
  job.join("a");
  job.join("b");
  job.join("a");
  CHECK(job.last<Restart>("b") != nullptr);
  job.join("b");
  CHECK(job.assignment("b") == "1/2#2");
}

TEST_CASE("rendezvous: a member may come back under another name") {
  Script job(make_rules(2, 2, 1));
  job.join("a");
  job.join("b");
  job.fail("a");
  job.join("b");
  job.state.join(job.peers["a"], make_node("c"), {}, job.now);
  job.read();
  CHECK(job.assignment("a") == "1/2#2");
  CHECK(job.assignment("b") == "0/2#2");
}

TEST_CASE("rendezvous: closing the job ends it for everybody") {
  Script job(make_rules(2, 2));
  job.join("a");
  job.state.close("the operator closed it", job.now);
  job.read();
  CHECK(job.last<Done>("a")->cause.text == "the operator closed it");
}
