// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/world_register.hpp"

#include "unit/rendezvous/timeless.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

TEST_CASE("world records: whoever is elected once more does not tell of its old world") {
  Timeless town(rules_for(1, 1));
  Coordinator& coordinator = town.host->coordinator();
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
