// SPDX-License-Identifier: Apache-2.0
// No second world while the first may be at work: what counts as its end, and how long to wait.
#include "rendezvous/membership/world_fence.hpp"

#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/session/make_session.hpp"
#include "unit/rendezvous/script.hpp"
#include "unit/rendezvous/timeless.hpp"

#include <doctest/doctest.h>
#include <set>
#include <string>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

/// A world of one member, a; b is a spare.
Script one_member(Duration grace = {}) {
  Rules rules = make_rules(1, 1, 1);
  rules.reaction = 5s;
  Script job(rules);
  job.grace = grace;
  job.join("a");
  job.join("b");
  CHECK(job.assignment("a") == "0/1#1");
  return job;
}

/// Of a store, which forgets a job with its last agent.
Rules store_rules(int min_nodes, int max_nodes) {
  Rules rules = make_rules(min_nodes, max_nodes, 3);
  rules.hosted = false;
  rules.silence = 15s;
  rules.last_call_timeout = 1s;
  return rules;
}

/// What the store knows of a job when its next agent comes, whose graces are 20 s.
Script come_again(const Script& before) {
  Script job(before.state.rules());
  job.grace = 20s;
  job.now = before.now;
  if (const auto left = before.state.left_behind(before.now)) job.state.inherit(*left);
  return job;
}

/// That of a member that has said goodbye: its group has ended.
void end_connection(Script& job, Peer peer) {
  job.state.depart(peer, "closed", job.now);
  job.read();
}

}  // namespace

TEST_CASE("world fence: a spare takes over at once from a member whose end is certain") {
  SUBCASE("its connection was closed in order") {
    Script job = one_member();
    job.play("end a | b: 0/1#2");
  }
  SUBCASE("it said goodbye, and has nothing to stop") {
    Script job = one_member();
    job.play("leave a | b: 0/1#2");
  }
}

TEST_CASE("world fence: nobody begins while one that leaves still saves") {
  for (const Way& way :
       {Way{"until its agent ends", "end a | b: 0/1#2"},
        Way{"also if its connection breaks: that says nothing of its workers",
            "silent a | b: - | 29s | b: - | 1s | b: 0/1#2"},
        Way{"but not longer than its grace", "due 30s | 30s | b: 0/1#2"},
        Way{"nor is a newcomer let in before", "join c | c: - | end a | c: 1/2#2"}}) {
    Script job(make_rules(1, 2));
    job.grace = 40s;
    job.play("join a b | leave a");
    // The others hear of it at once, and can stop and save meanwhile.
    job.play(
        "b: NodeLeft | join b | b: - | 10s | b: '1 node here, enough to start; waiting for "
        "1 node to stop its workers, at most 30.0 s'");
    job.play(way);
  }
}

TEST_CASE("world fence: a save longer than join_timeout is waited for, and fails no job") {
  for (const Way& way :
       {Way{"of one that leaves", "leave a | join b | 90s | b: - | b: not done | end a | b: 0/1#2"},
        Way{"of one that is to stop",
            "end a | join c | 90s | c: - | c: not done | 10s | c: 0/1#2 | b: lost"}}) {
    Rules rules = make_rules(1, 2);
    rules.join_timeout = 30s;
    Script job(rules);
    job.grace = 100s;
    job.play("join a b");
    job.play(way);
  }
}

TEST_CASE("world fence: the last grace of a world that was lost counts as well") {
  for (const Way& way :
       {Way{"fallen silent, it notices, and then stops its workers",
            "silent a | after 45s b: 0/1#2"},
        Way{"its failure was told while the rest of its group was being stopped",
            "fail a | silent a | b: - | 40s | b: 0/1#2"},
        Way{"a connection that ends in order ends the doubt", "fail a | end a | b: 0/1#2"}}) {
    Script job = one_member(40s);
    job.play(way);
  }
}

TEST_CASE("world fence: of a world that is silent nobody knows that it has ended, until it must") {
  Script job = one_member();
  job.play("silent a | b: - | 4900ms | b: - | due 100ms | 100ms | b: 0/1#2");
}

TEST_CASE("world fence: one member's word is enough for all") {
  Script(make_rules(2, 2)).play("join a b c | silent a | join b | b: 0/2#2 | c: 1/2#2");
}

TEST_CASE("world fence: an inherited world is waited for, but not for ever") {
  for (const Way& way :
       {Way{"a member comes back", "join m@1.7/2 | m: 0/2#8 | x: 1/2#8"},
        Way{"one of an older round says nothing about the last", "join m@1.6/2 | m: -"},
        Way{"one of an older coordinator's, with a higher number, says nothing either",
            "join m@1.9/2 | m: - | join n@1.7/2 | m: 0/2#10"},
        Way{"nor does the goodbye of such a one", "arrive m@1.9/2 2s | leave m | 30s | x: -"},
        Way{"it is found to be gone", "gone follow | x: 0/2#8"},
        Way{"nobody comes",
            "10s | x: '2 nodes here; none of the 2 nodes of the last round, which may still "
            "be at work out of reach: waiting for one of them, at most 50.0 s' | 50s | x: "
            "0/2#8"}}) {
    Script job(make_rules(1, 2));
    job.inherit({{1, 7}, 0, 2}, 60s);
    job.play("join x y | x: -");
    job.play(way);
  }
}

TEST_CASE("world fence: members of a world that is no more may be saving where nobody sees them") {
  for (const Way& way :
       {Way{"as long as it takes them to notice, and their grace", "gone 70s | after 70s x: 0/2#8"},
        Way{"but not on this machine: they would be here", "gone follow | after 1s x: 0/2#8"},
        Way{"the last one may be the coordinator's node, which has gone",
            "gone 70s | join a@1.7/4 b@1.7/4 c@1.7/4 | a: - | follow | a: 0/4#8"}}) {
    Rules rules = make_rules(1, 4);
    rules.last_call_timeout = 0s;
    Script job(rules);
    job.inherit({{1, 7}, 0, 4}, 120s, 4, 1);
    job.play("join x y");
    job.play(way);
  }
}

TEST_CASE("world fence: whoever was chosen for a world, and never heard so, can say so") {
  for (const Way& way :
       {Way{"all but the coordinator's node", "join b | a: - | follow | 30s | a: 0/2#9"},
        Way{"all", "join b c | a: 0/3#9"},
        Way{"the others may have heard", "join x y | follow | a: -"}}) {
    Rules rules = make_rules(1, 3);
    rules.silence = 30s;
    Script job(rules);
    job.state.set_epoch(3);
    job.inherit({{2, 8}, 0, 3}, 120s, 3, 1, std::set<std::string>{"a_1_0", "b_1_0", "c_1_0"});
    job.play("join a@1.7/3 | returning 1");
    job.play(way);
  }
}

TEST_CASE("world fence: members are named in the record of a world that is not too large") {
  Script job(make_rules(2, 2));
  job.state.require_acknowledgements();
  job.play("join a");
  SUBCASE("with names that are not too long") {
    job.play("join b");
    CHECK(job.state.unacknowledged()->members == std::vector<std::string>{"a_1_0", "b_1_0"});
  }
  SUBCASE("or none") {
    job.join(std::string(100, 'b'));
    CHECK(job.state.unacknowledged()->members.empty());
  }
}

TEST_CASE("world fence: members that were cut off from a store with all others may be saving") {
  const Rules rules = store_rules(1, 3);
  Script before(rules);
  before.grace = 20s;
  before.play("join a b c | c: 2/3#1 | silent a b c");
  Script job = come_again(before);
  const auto world = before.state.last_world();
  job.join("a", world);
  job.play("a: -");
  SUBCASE("the others come back") {
    job.join("b", world);
    job.play("a: -");
    job.join("c", world);
    job.play("a: 0/3#2");
  }
  SUBCASE("nobody else does") {
    CHECK(job.assignment_after(rules.silence + 20s, "a") == "0/1#2");
  }
  SUBCASE("nor does it stay, which begins no wait anew") {
    job.play("10s | end a");
    Script again = come_again(job);
    again.play("5s");
    again.join("a", world);
    CHECK(again.assignment_after(rules.silence + 20s - 15s, "a") == "0/1#2");
  }
}

TEST_CASE("world fence: a store waits for nobody whose end it has seen") {
  Script before(store_rules(1, 2));
  before.grace = 20s;
  before.play("join a b | b: 1/2#1");
  const auto world = before.state.last_world();
  SUBCASE("it said goodbye, and ended in order") {
    before.play("leave b | end b");
  }
  SUBCASE("it was stopped, and joined again") {
    before.play("fail a");
    before.join("b", world);
    before.play("end b");
  }
  SUBCASE("it ended in order without a word") {
    before.play("end b");
  }
  SUBCASE("it had finished") {
    before.play("finish b | silent b | fail a");
  }
  before.play("stopping a 20s | broken a");
  Script job = come_again(before);
  job.play("1s");
  job.join("a", world);
  job.play("1s | a: 0/1#2");
}

TEST_CASE("world fence: a store waits for a world although others told of a higher number") {
  Script before(store_rules(1, 2));
  before.grace = 20s;
  before.play("join a b | b: 1/2#1");
  // out of an earlier life of the store
  before.play("join c@1.9/4 | silent a b c");
  Script job = come_again(before);
  job.play("join a@1.1/2 | 10s | a: - | join b@1.1/2");
  CHECK_MESSAGE(job.assignment("a") == "0/2#10", "no agent obeys a number that has been");
}

TEST_CASE("world fence: a record tells whether all members are on one machine with who writes it") {
  for (const bool both : {false, true}) {
    Script job(make_rules(2, 2));
    job.state.require_acknowledgements();
    Node here = make_node("a"), elsewhere = make_node("b");
    here.local = true;
    elsewhere.local = both;
    job.state.join(1, here, {}, job.now);
    job.state.join(2, elsewhere, {}, job.now);
    REQUIRE(job.state.unacknowledged());
    CHECK(job.state.unacknowledged()->local == both);
  }
}

TEST_CASE("world fence: whoever comes back to a job that is over hears how it ended") {
  Script job(make_rules(1, 1));
  job.state.conclude({1, 7}, {});
  job.play("join late@1.7/2 | late: well");
  // The next run under this name is another matter.
  job.play("join new | new: 0/1#8 | join later@1.6/2*1 | later: done | finish new");
  job.play("join member@1.8/1 | member: well | join stranger | stranger: bad");
}

TEST_CASE("world fence: who had said goodbye to an earlier coordinator is waited for") {
  for (const Way& way :
       {Way{"as long as it may take",
            "10s | x: '2 nodes here, enough to start; waiting for 1 node to stop its "
            "workers, at most 10.0 s' | 10s | m: 0/2#8"},
        Way{"also if the world is found to be gone", "gone follow | after 20s m: 0/2#8"}}) {
    Script job(make_rules(1, 2));
    MemberFence fence;
    fence.inherit({1, job.now + 20s});
    job.state.inherit({{{1, 7}, 0, 2}, job.now + 60s, fence});
    job.play("join m@1.7/2 x");
    // its word is one for the world, not for them
    job.play("m: -");
    job.play(way);
  }
}

TEST_CASE(
    "world fence: one that has not come back since it was told to stop may say goodbye, too") {
  Script job(make_rules(1, 2));
  job.inherit({{1, 7}, 0, 2}, 60s);
  job.play("join m@1.7/2");
  const Peer late = 99;
  job.state.leave(late, "SIGTERM", job.now, 20s);
  job.play("join x | m: -");
  SUBCASE("until its agent ends") {
    job.play("10s");
    end_connection(job, late);
    job.play("m: 0/2#8");
  }
  SUBCASE("but not longer than its grace") {
    job.play("20s | m: 0/2#8");
  }
}

TEST_CASE("world fence: the end of one that came too late for a world says nothing of that world") {
  Script job = one_member();
  const Peer late = 99;
  job.state.leave(late, "SIGTERM", job.now, 20s);
  end_connection(job, late);
  job.play("silent a | b: -");
}

TEST_CASE("world fence: join_timeout ends this wait too, and says for whom it was") {
  Rules rules = make_rules(1, 2);
  rules.join_timeout = 30s;
  Script job(rules);
  job.inherit({{1, 7}, 0, 2}, 60s);
  job.play(
      "join x | 30s | x: 'none of the 2 nodes of the last round came within 30.0 s "
      "(join_timeout)'");
}

TEST_CASE("world fence: who claims to be at work in an unknown world does not prolong the wait") {
  for (const Way& way : {Way{"while it is there", ""}, Way{"nor once it is gone", "silent odd"},
                         Way{"nor once it has said goodbye", "leave odd"}}) {
    Rules rules = make_rules(2, 2);
    rules.join_timeout = 8s;
    Script job(rules);
    job.play("join a");
    // the first word
    job.play("1s | 4s | arrive odd@1.7/3 30s");
    // the second one
    job.play("1s | a: '1 node here; waiting for 1 to stop their workers, at most 2.0 s'");
    job.play(way);
    job.play("due 2s | 1900ms | a: not done | 100ms | a: '..within 8.0 s (join_timeout)'");
  }
}

TEST_CASE("world fence: no round begins beside a world that was not given out here") {
  for (const Way& way : {Way{"until its time is over", "10s | a: 0/2#8"},
                         Way{"or its group has ended", "end odd | a: 0/2#8"},
                         Way{"or it joins", "join odd@1.7/3 | a: 0/3#8"}}) {
    Rules rules = make_rules(2, 3);
    rules.join_timeout = 8s;
    Script job(rules);
    job.play("join a | arrive odd@1.7/3 30s | join b | 20s | a: - | a: '..at most 10.0 s'");
    job.play(way);
  }
}

TEST_CASE("world fence: a round is given out when the register has noted it, as it then is") {
  Script job(make_rules(2, 2));
  job.state.require_acknowledgements();
  job.play("join a | nothing to record | join b | a: -");
  REQUIRE(job.state.unacknowledged());
  const WorldRecord first = *job.state.unacknowledged();
  CHECK(first == WorldRecord{{1, 1}, 2, "a", 29000, {}, false, {"a_1_0", "b_1_0"}});
  CHECK(*job.state.deadline() > job.now);  // nothing to do until the answer comes
  // Whoever the others would ask for is gone: that record is of no use.
  job.play("end a | nothing to record | join c");
  CHECK(job.state.unacknowledged()->address == "b");
  job.state.acknowledge(first, job.now);
  job.play("b: -");
  job.state.acknowledge(*job.state.unacknowledged(), job.now);
  job.play("b: 0/2#1 | nothing to record");
}

TEST_CASE(
    "world fence: a register that takes its time wakes nobody in vain, and is not waited for") {
  Rules rules = make_rules(2, 2);
  rules.join_timeout = 60s;
  Script job(rules);
  job.state.require_acknowledgements();
  job.play("join a | 20s | join b");
  for (int second = 20; second < 59; ++second) {
    REQUIRE(job.state.unacknowledged());
    CHECK(*job.state.deadline() > job.now);
    job.pass(1s);
  }
  CHECK(job.told["a"].size() < 20);  // hears of it now and then
  job.play(
      "b: '2 nodes here, enough to start; waiting until that is recorded' | 1s | a: "
      "'enough nodes came, but within 1 min 00 s (join_timeout) that could not be "
      "recorded'");
}

TEST_CASE("world fence: nothing is recorded for a job that is over, or has nobody") {
  Script job(make_rules(1, 2));
  job.state.require_acknowledgements();
  job.play("join a | 30s");
  REQUIRE(job.state.unacknowledged());
  const WorldRecord world = *job.state.unacknowledged();
  SUBCASE("over") {
    job.state.close("enough", job.now);
  }
  SUBCASE("nobody") {
    job.play("end a");
  }
  job.state.acknowledge(world, job.now);
  job.play("nothing to record");
}

TEST_CASE(
    "world fence: a world that nobody can vouch for any more is stopped, and costs no restart") {
  Script job(make_rules(1, 2));
  job.play("join a | 30s | a: 0/1#1 | hold");
  job.state.suspend("cut off", job.now);
  job.play("a: 'cut off' | a: free | join a");
  // held: no new round
  job.play("a: restart | release | a: 0/1#2");
}

TEST_CASE("heartbeat lease: an answer proves no more than that the beat was sent") {
  HeartbeatLease heartbeat_lease;
  const TimePoint start{1000s};
  heartbeat_lease.begin(start, 5s, 3);
  CHECK(heartbeat_lease.next_look(start) == start + 5s);
  heartbeat_lease.sent(start + 5s);
  heartbeat_lease.sent(start + 10s);
  CHECK(!heartbeat_lease.is_over(start + 19s));
  // The network has kept the answer for ten seconds.
  heartbeat_lease.answered();
  CHECK(heartbeat_lease.end() == start + 25s);
  CHECK(heartbeat_lease.next_look(start + 22s) == start + 25s);
  CHECK(heartbeat_lease.is_over(start + 25s));
  heartbeat_lease.answered();
  heartbeat_lease.answered();  // one too many, from a confused coordinator
  CHECK(heartbeat_lease.end() == start + 30s);
}

TEST_CASE("heartbeat lease: who was paused asks once, and waits one interval for the answer") {
  using Look = HeartbeatLease::Look;
  HeartbeatLease lease;
  const TimePoint start{1000s};
  lease.begin(start, 5s, 3);
  CHECK(lease.next_look(start) == start + 5s);
  lease.sent(start + 5s);
  CHECK(lease.next_look(start + 5s) == start + 10s);
  const TimePoint awake = start + 60s;
  CHECK(lease.look(awake) == Look::Ask);
  lease.sent(awake);
  CHECK(lease.next_look(awake) == awake + 5s);
  CHECK(lease.look(awake + 1s) == Look::Waiting);
  lease.answered();  // the heartbeat of before the pause: proves nothing
  CHECK(lease.look(awake + 2s) == Look::Waiting);
  SUBCASE("which comes") {
    lease.answered();
    CHECK(lease.look(awake + 5s) == Look::Sound);
    CHECK(lease.next_look(awake + 5s) == awake + 10s);
    CHECK(lease.look(awake + 20s) == Look::Ask);  // paused once more
  }
  SUBCASE("or does not") {
    CHECK(lease.look(awake + 5s) == Look::Over);
  }
}

TEST_CASE("heartbeat lease: silence is no pause of one's own") {
  HeartbeatLease lease;
  TimePoint now{1000s};
  lease.begin(now, 5s, 3);
  while (!lease.is_over(now)) {
    CHECK(lease.look(now) == HeartbeatLease::Look::Sound);
    lease.sent(now);
    now = lease.next_look(now);
  }
  CHECK(now == TimePoint(1020s));
  CHECK(lease.look(now) == HeartbeatLease::Look::Over);
}

TEST_CASE("world id: a number that was given out twice names two worlds") {
  const WorldId first{1, 1}, second{5, 1};
  CHECK(!first.is_same(second));
  CHECK(second.is_later_than(first));
  CHECK(!first.is_later_than(second));
  CHECK(second.is_later_than({1, 9}));
  CHECK(WorldId(5, 2).is_later_than(second));
}

TEST_CASE("world id: without an epoch on both sides the numbers are compared") {
  const WorldId told{0, 7};
  CHECK(told.is_same({3, 7}));
  CHECK(WorldId(3, 7).is_same(told));
  CHECK(told.is_later_than({9, 6}));
  CHECK(!told.is_later_than({1, 7}));
  CHECK(WorldId(1, 8).is_later_than(told));
}

TEST_CASE("world id: no world is later than none, and none later than any") {
  CHECK(WorldId(1, 1).is_later_than({}));
  CHECK(!WorldId().is_later_than({1, 1}));
  CHECK(!WorldId(9, 0).is_later_than({1, 1}));  // what a peer may claim
  CHECK(!WorldId().is_same({1, 1}));
}

TEST_CASE("past worlds: a later epoch's world is the last one, although its number is lower") {
  WorldHistory past;
  CHECK(past.learn({{1, 7}, 0, 4}, false));
  CHECK(past.learn({{3, 2}, 0, 3}, false));
  CHECK(past.last() == WorldId{3, 2});
  CHECK(past.last_size() == 3);
  CHECK(past.is_succession());
  CHECK(!past.learn({{1, 8}, 0, 4}, false));
  CHECK_MESSAGE(past.highest() == 8, "no member of that one obeys a lower number");
  CHECK(past.told(0).id == WorldId{0, 8});
}

TEST_CASE("past worlds: while a round runs it stays the last one") {
  WorldHistory past;
  past.formed({2, 3}, 2);
  CHECK(!past.is_succession());
  CHECK(!past.learn({{0, 9}, 0, 4}, true));
  CHECK(past.last() == WorldId{2, 3});
  CHECK(past.highest() == 9);
  CHECK_MESSAGE(!past.learn({{2, 9}, 0, 4}, false), "it was another life's, and was heard of");
}

TEST_CASE("past worlds: the members of a job that is over are those up to its last world") {
  WorldHistory past;
  CHECK(!past.is_concluded({1, 1}));
  past.conclude({3, 5});
  CHECK(past.is_concluded({3, 5}));
  CHECK(past.is_concluded({2, 9}));
  CHECK(past.is_concluded({0, 4}));
  CHECK(!past.is_concluded({4, 1}));
  CHECK(!past.is_concluded({}));
}

TEST_CASE("world fence: a member of an earlier world of the same number says nothing of the last") {
  Script job(make_rules(1, 2));
  job.state.set_epoch(6);
  job.inherit({{5, 1}, 0, 1}, 60s, 1, 1);
  job.play("join x");
  SUBCASE("if it says which one it was in") {
    job.play("join old@1.1/2 | x: -");
    CHECK(job.state.world_fence().fence.unheard() == 1);
    job.play("returning 0 | 60s | old: 0/2#2");
  }
  SUBCASE("nor when its group is stopped") {
    job.play("arrive old@1.1/2 20s | join old@1.1/2 | x: -");
  }
  SUBCASE("but one of an older release must be believed") {
    job.play("join old@0.1/2 | x: 1/2#2");
  }
}

TEST_CASE("world fence: a coordinator that is elected again keeps the world of its first epoch") {
  Script job(make_rules(2, 2));
  job.play("join a b");
  job.state.set_epoch(4);
  job.play("silent b | join a@1.1/2 | returning 1 | join b@1.1/2");
  CHECK(job.state.past().last() == WorldId{4, 2});
}

TEST_CASE("world records: whoever is elected once more does not tell of its old world") {
  Timeless town(rules_for(1, 1));
  Coordinator& coordinator = *town.host;
  WorldRegister records(*town.network.clock);
  WorldRecord ours{{1, 1}, 2, "192.0.2.1", 29000};
  records.record(ours, [] {});
  CHECK(records.has_any());
  // Meanwhile another one was, and has given out the next world.
  const std::string theirs = encode_record({{{2, 2}, 3, "192.0.2.2", 29000}, "other", "there"});
  records.inherit(theirs, coordinator, 60s);
  CHECK_MESSAGE(!records.has_any(), "it leaves there what it has found");
  CHECK(!records.is_strange(theirs));
  ours.id = {3, 3};
  records.record(ours, [] {});
  CHECK(decode_record(records.text(coordinator))->world == ours);
  records.stop();
}
