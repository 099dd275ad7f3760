// SPDX-License-Identifier: Apache-2.0
#include "agent/web/web_services.hpp"
#include "support/fake_clock.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::agent;
using std::chrono::seconds;

TEST_CASE("health: an agent whose loop turns is well, whatever its job does") {
  CHECK(ailments({seconds(6), {}, "stopping"}).empty());
  CHECK(ailments({seconds(60), seconds(60), "running"}).empty());
  const auto text = health_json({seconds(1), seconds(2), "waiting"});
  CHECK(text.at("status") == "ok");
  CHECK(text.at("phase") == "waiting");
  CHECK(text.at("timer_overdue_s") == 2.0);
}

TEST_CASE("health: what ails it is said") {
  const auto text = health_json({seconds(61), seconds(75), "running"});
  CHECK(text.at("status") == "failing");
  CHECK(json::serialize(text.at("why")) ==
        R"(["the agent's loop stood still for 1 min 01 s",)"
        R"("a worker lives on 1 min 15 s after one of its timers expired"])");
}

TEST_CASE("health: the heartbeat is as old as the last turn of the loop") {
  test::FakeClock clock;
  const LoopBeat beat(clock);
  CHECK(beat.since() == seconds(0));
  clock.advance(seconds(12));
  CHECK(beat.since() == seconds(2));
}
