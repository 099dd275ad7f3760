// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/world_fence.hpp"
#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

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
  MemberFence fence;
  fence.expect({5, 1}, 1, 1);
  job.state.inherit({{5, 1}, 0, 1}, job.now + 60s, fence);
  job.join("x");
  SUBCASE("if it says which one it was in") {
    job.join("old", {{1, 1}, 0, 2});
    CHECK(job.assignment("x") == "");
    CHECK(job.state.world_fence().fence.unheard() == 1);
    CHECK(job.state.quorum().returning == 0);
    job.pass(60s);
    CHECK(job.assignment("old") == "0/2#2");
  }
  SUBCASE("nor when its group is stopped") {
    job.arrive_stopping("old", {{1, 1}, 0, 2}, 20s);
    job.join("old", {{1, 1}, 0, 2});
    CHECK(job.assignment("x") == "");
  }
  SUBCASE("but one of an older release must be believed") {
    job.join("old", {{0, 1}, 0, 2});
    CHECK(job.assignment("x") == "1/2#2");
  }
}

TEST_CASE("world fence: a coordinator that is elected again keeps the world of its first epoch") {
  Script job(make_rules(2, 2));
  job.join("a");
  job.join("b");
  job.state.set_epoch(4);
  job.lose("b", Loss::Silent);
  job.join("a", {{1, 1}, 0, 2});
  CHECK(job.state.quorum().returning == 1);
  job.join("b", {{1, 1}, 0, 2});
  CHECK(job.state.past().last() == WorldId{4, 2});
}
