// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/state.hpp"

#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>
#include <string>
#include <utility>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

TEST_CASE("rendezvous: with the minimum there a last call passes, which late nodes do not extend") {
  Script(make_rules(1, 3)).play("join a | 29s | join b | a: - | 1s | a: 0/2#1 | b: 1/2#1");
}

TEST_CASE("rendezvous: a last call ends when the minimum is lost, and begins anew") {
  Script(make_rules(2, 3)).play("join a b | 20s | end b | 20s | join c | a: - | 30s | a: 0/2#1");
}

TEST_CASE("rendezvous: whoever waits is told who is missing") {
  Script job(make_rules(2, 2));
  job.play("join a | 1s | a: progress");
  CHECK(job.last<Progress>("a")->present == 1);
  CHECK(job.last<Progress>("a")->wanted == 2);
  job.play("a: '1 of 2 nodes here (a); waiting for 1 more, at most 9 min 59 s'");
}

TEST_CASE("rendezvous: a node that stays alone is told so after join_timeout") {
  Script(make_rules(2, 2))
      .play(
          "join a | 600s | a: bad | a: Timeout | a: '1 node (a) of at least 2 came within 10 "
          "min 00 s (join_timeout)'");
}

TEST_CASE("rendezvous: a late success of an old round leaves nobody alone who seems to hang") {
  using Kind = hangs::NodeProgress::Kind;
  Script job(make_rules(2, 2, 1));
  job.play("join a b | fail a | join a@1.1/2*1 b@1.1/2*1 | a: 0/2#2");
  const auto say = [&job](const char* name, Report report) {
    job.state.report(job.peers[name], std::move(report), job.now);
    job.read();
  };
  say("a", ProgressReport{2, {Kind::Moves}, 0s});
  say("b", ProgressReport{2, {Kind::Stands}, 60s});
  say("a", Succeeded{1});
  CHECK(job.last<TakeStacks>("b") == nullptr);
  say("a", Succeeded{2});
  CHECK(job.last<TakeStacks>("b") != nullptr);
}

TEST_CASE("rendezvous: a second report of the same failed round costs nothing") {
  Script job(make_rules(2, 2, 2));
  job.play("join a b");
  const auto round = job.state.round_number();
  job.play("fail a");
  job.state.fail(job.peers["b"], round, {}, job.now);
  job.play("join a b");
  job.state.fail(job.peers["b"], round, {}, job.now);
  job.play("b: 1/2#2 | attempt 1");
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
    job.play("join a b | victim a");
    job.pass(Rules().culprit_wait - 1ms);
    job.play("b: not restart | 1ms | b: by a");
  }
  SUBCASE("since all blame each other") {
    Script job(make_rules(2, 2, 1));
    job.play("join a b | victim a b | b: by a");
  }
  SUBCASE("and a node that is lost meanwhile is one") {
    Script job(make_rules(2, 2, 1));
    job.play("join a b | victim a | end b | a: NodeLost | attempt 0");
  }
  SUBCASE("and after the verdict a late one is still the culprit") {
    Script job(make_rules(2, 2));
    job.play("join a b | victim a");
    job.pass(Rules().culprit_wait);
    job.play("fail b=7 | a: by b");
  }
}

TEST_CASE("rendezvous: the time limit is named as the back end's key") {
  Rules rules = make_rules(2, 2);
  rules.fixed_ranks = true;
  Script job(rules);
  job.play("join a=0 | 600s | a: '..within 10 min 00 s (timeout)'");
}

TEST_CASE("rendezvous: the verdict does not wait when everybody has reported") {
  Script(make_rules(2, 2)).play("join a b | finish a | fail b | a: bad");
}

TEST_CASE("rendezvous: a node that has finished and goes leaves the others in peace") {
  Script(make_rules(1, 2, 1))
      .play(
          "join a b | finish a | end a | b: 1/2#1 | join c | c: spare | 5s | b: 1/2#1 | finish "
          "b | b c: well");
}

TEST_CASE("rendezvous: a lost node shrinks the world at once and costs no restart") {
  Script job(make_rules(2, 3, 1));
  job.play("join a b c | end a | b: free");
  CHECK(job.last<Restart>("b")->restarts_left == 1);
  job.play(
      "b: NodeLost | b: 'node a_1_0 was lost: connection reset' | join b c | b: 0/2#2 | b: "
      "attempt 0");
}

TEST_CASE("rendezvous: a survivor that finds no replacement gives up after join_timeout") {
  Script(make_rules(2, 2, 3)).play("join a b | end a | join b | 600s | b: Timeout");
}

TEST_CASE("rendezvous: newcomers are collected while training goes on") {
  Script(make_rules(1, 8))
      .play(
          "join a | 30s | join b | a: 0/1#1 | 500ms | join c | 500ms | a: restart | join a | "
          "c: 2/3#2");
}

TEST_CASE("rendezvous: a spare does not take the place of a member that is still stopping") {
  Script(make_rules(1, 2, 1))
      .play("join a b c | fail a | join a | 60s | c: not round | join b | a: 0/2#2 | b: 1/2#2");
}

TEST_CASE("rendezvous: an agent that never stops its workers is left behind after join_timeout") {
  Script(make_rules(1, 2, 1))
      .play("join a b | fail a | join a | 600s | a: 0/1#2 | b: lost | members 1");
}

TEST_CASE("rendezvous: the same agent over a new connection replaces the old one") {
  Script job(make_rules(2, 2));
  job.play("join a b");
  job.peers["again"] = 77;
  job.state.join(77, make_node("a"), {}, job.now);
  job.play("b: NodeLost | join b | again: 0/2#2");
}

TEST_CASE("rendezvous: agents with the same id but another instance are two nodes") {
  Script job(make_rules(2, 2));
  for (const Peer peer : {Peer{1}, Peer{2}}) {
    Node node = make_node("localhost");
    node.instance = std::string(1, static_cast<char>('x' + peer));
    job.peers[node.instance] = peer;
    job.state.join(peer, node, {}, job.now);
  }
  job.play("y: 0/2#1 | z: 1/2#1");
}

TEST_CASE("rendezvous: node 0's own loopback is no master for nodes of other machines") {
  Rules rules = make_rules(2, 2);
  rules.fixed_ranks = true;
  Script job(rules, "localhost", 29500);
  job.play("join 127.0.0.1=0");
  SUBCASE("and gives way to the address that they have come to") {
    job.state.set_reachable("10.0.0.1");
    job.play("join 10.0.0.2=1 | 10.0.0.2: round");
    CHECK(job.last<RoundReady>("10.0.0.2")->round.master_addr == "10.0.0.1");
    CHECK(job.last<RoundReady>("127.0.0.1")->round.master_port == 29500);
  }
  SUBCASE("but it is for those of this one") {
    job.play("join 127.0.0.2=1 | 127.0.0.2: round");
    CHECK(job.last<RoundReady>("127.0.0.2")->round.master_addr == "localhost");
  }
}

TEST_CASE("rendezvous: who replaces a dead node of a fixed rank is admitted when that is noticed") {
  for (const Way& way :
       {Way{"it falls silent", "silent b | a: restart | join a=0 | a: 0/2#2 | c: 1/2#2"},
        Way{"it says goodbye", "leave b | join a=0 | c: 1/2#2"},
        Way{"its replacement goes first", "end c b | join a=0 | a: - | members 1"},
        Way{"the job ends first", "fail a b | c: bad"}}) {
    Rules rules = make_rules(2, 2);
    rules.fixed_ranks = true;
    Script job(rules);
    job.play("join a=0 b=1 | b: 1/2#1 | join c=1 | hear a | hear c | c: progress");
    job.play(way);
  }
}

TEST_CASE("rendezvous: whose group is being stopped claims no fixed rank before it has ended") {
  Rules rules = make_rules(2, 2);
  rules.fixed_ranks = true;
  Script job(rules);
  job.play("join a=0 b=1 | b: 1/2#1 | silent b | join c=1");
  // The one that was replaced is back, and its group is still at work.
  Node old = make_node("b");
  old.node_rank = 1;
  job.peers["b"] = ++job.last_peer;
  job.state.arrive_stopping(job.peers["b"], old, {{1, 1}, 0, 2}, 10s, job.now);
  job.play("leave c | join a=0 | a: - | join b@1.1/2=1 | a: 0/2#2 | b: 1/2#2");
}

TEST_CASE("rendezvous: a new coordinator goes on where the last one stopped") {
  Script job(make_rules(1, 4, 3));
  job.state.set_epoch(9);
  const PreviousWorld previous{.id = {1, 5}, .attempt = 2, .nodes = 3};
  job.join("a", previous);
  job.join("b", previous);
  job.play("a: - | 1s | a: 0/2#6 | a: attempt 2");
  CHECK(job.last<RoundReady>("a")->round.epoch == 9);
}

TEST_CASE("rendezvous: a coordinator that is not sure of its election forms no round") {
  Script(make_rules(1, 2)).play("hold | join a b | a: - | 60s | a: - | release | a: 0/2#1");
}

TEST_CASE("rendezvous: who comes when the job is over hears so") {
  Script job(make_rules(1, 1));
  job.play("join a | finish a | join b | b: bad | b: Closed");
  CHECK(job.last<Done>("b")->cause.text ==
        "the job \"job\" is already over; start it under another --rdzv-id");
}

TEST_CASE("rendezvous: a member that joins by its own will restarts the world") {
  Script(make_rules(2, 2)).play("join a b a | b: restart | join b | b: 1/2#2");
}

TEST_CASE("rendezvous: a member may come back under another name") {
  Script job(make_rules(2, 2, 1));
  job.play("join a b | fail a | join b");
  job.state.join(job.peers["a"], make_node("c"), {}, job.now);
  job.play("a: 1/2#2 | b: 0/2#2");
}

TEST_CASE("rendezvous: closing the job ends it for everybody") {
  Script job(make_rules(2, 2));
  job.play("join a");
  job.state.close("the operator closed it", job.now);
  job.play("a: 'the operator closed it'");
}
