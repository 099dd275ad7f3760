// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/coordinator.hpp"
#include "unit/rendezvous/timeless.hpp"

#include <doctest/doctest.h>
#include <memory>
#include <optional>
#include <vector>

using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

TEST_CASE("cut off detector: who has lost more than are left is cut off") {
  CutOffDetector contact;
  CHECK(!contact.silent(Phase::Running, 2));
  CHECK(contact.silent(Phase::Joining, 1));
}

TEST_CASE("cut off detector: half of them prove nothing") {
  CutOffDetector contact;
  CHECK(!contact.silent(Phase::Running, 3));
  CHECK(!contact.silent(Phase::Joining, 2));
}

TEST_CASE("cut off detector: a complete world needs no other coordinator") {
  CutOffDetector contact;
  for (int spare = 0; spare < 3; ++spare) CHECK(!contact.silent(Phase::Running, 2));
}

TEST_CASE("cut off detector: those who were lost before the last world was formed do not count") {
  CutOffDetector contact;
  CHECK(!contact.silent(Phase::Running, 4));
  CHECK(!contact.silent(Phase::Joining, 3));
  CHECK(!contact.silent(Phase::Running, 2));
  CHECK(!contact.silent(Phase::Joining, 2));
}

TEST_CASE("cut off detector: who comes makes good for one who was lost") {
  CutOffDetector contact;
  contact.came();
  CHECK(!contact.silent(Phase::Running, 3));
  contact.came();
  CHECK(!contact.silent(Phase::Joining, 1));
}

TEST_CASE("coordinator: more nodes fall silent than are left") {
  CountsCutOffs owner;
  Timeless town(rules_for(1, 3), &owner);
  Spoken first(town, {}, "first"), second(town, {}, "second");
  town.agent->join();
  REQUIRE(town.is_told());
  REQUIRE(town.agent->round().group_world_size() == 3);
  SUBCASE("without a word") {
    town.pass(20s, 40);
    town.agent->hear<Restart>();
    CHECK(owner.count == 1);
  }
  SUBCASE("after they have said goodbye: then nobody there waits for another leader") {
    for (auto* leaver : {&first, &second})
      leaver->link->send(encode(FromAgent(Leaving{"it received SIGTERM", 30s})));
    REQUIRE(town.is_told());
    town.agent->hear<Restart>();
    town.agent->join();
    town.pass(20s, 40);
    CHECK(owner.count == 0);
  }
}

TEST_CASE("coordinator: connections that members have given up and replaced are no losses") {
  CountsCutOffs owner;
  Timeless town(rules_for(1, 3), &owner);
  // The last one of each is alive; those before are held open until a group has ended.
  std::vector<std::unique_ptr<Spoken>> first, second;
  town.agent->join();
  for (int turn = 0; turn < 3; ++turn) {
    first.push_back(std::make_unique<Spoken>(town, std::nullopt, "first"));
    second.push_back(std::make_unique<Spoken>(town, std::nullopt, "second"));
    town.pass(1s, 4);
  }
  for (int step = 0; step < 10; ++step) {
    for (auto* last : {first.back().get(), second.back().get()})
      last->link->send(encode(FromAgent(Heartbeat{})));
    town.pass(2s, 4);
  }
  CHECK(town.host->coordinator().agents() == 3);
  CHECK(owner.count == 0);
}
