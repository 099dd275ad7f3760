// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/run_status.hpp"
#include "support/logged_text.hpp"
#include "unit/logs/plumbing.hpp"

#include <algorithm>
#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

spec::JobSpec nodes_of(int nodes) {
  spec::JobSpec job;
  job.max_nodes = nodes;
  job.rdzv_endpoint = "node1:29400";
  return job;
}

TEST_CASE(
    "waiting: after ten seconds it is said, then ever more rarely, until the nodes have met") {
  test::LoggedText log;
  plumbing::FakeClock clock;
  WaitingWarning waiting(clock, nodes_of(2), false);
  const auto lines = [&log] { return std::ranges::count(log.text, '\n'); };
  waiting.on(moment::PhaseChanged{Phase::Joining, clock.now()});
  waiting.on(moment::Progress{"1 of 2 nodes here (node1); waiting for 1 more, at most 9 min 50 s"});
  clock.advance(9s);
  CHECK(log.text.empty());
  clock.advance(1s);
  CHECK(
      log.text.contains("1 of 2 nodes here (node1); waiting for 1 more, at most 9 min 50 s; "
                        "nodes meet at node1:29400"));
  clock.advance(19s);
  CHECK(lines() == 1);
  clock.advance(1s);
  CHECK(lines() == 2);
  clock.advance(1h);
  CHECK(lines() < 14);
  waiting.on(moment::PhaseChanged{Phase::Starting, clock.now()});
  CHECK(clock.armed() == 0);
}

TEST_CASE("waiting: who waits at a loopback address hears what other machines need") {
  test::LoggedText log;
  plumbing::FakeClock clock;
  auto job = nodes_of(2);
  job.rdzv_backend = "static";
  job.rdzv_endpoint = "127.0.0.1:29500";
  WaitingWarning first(clock, job, true);
  job.node_rank = 1;
  WaitingWarning second(clock, job, false);
  job.rdzv_backend = "c10d", job.rdzv_endpoint = "localhost";
  WaitingWarning third(clock, job, false);
  job.rendezvous.is_host = false;
  WaitingWarning fourth(clock, job, false);
  for (auto* one : {&first, &second, &third, &fourth})
    one->on(moment::PhaseChanged{Phase::Joining, clock.now()});
  clock.advance(10s);
  CHECK(
      log.text.contains("127.0.0.1:29500, which other machines cannot reach: nodes there need "
                        "this one's address (--master-addr"));
  CHECK(log.text.contains("127.0.0.1:29500, on this machine: if node 0 is another one, give"));
  CHECK(
      log.text.contains("localhost, which other machines cannot reach: nodes there need this "
                        "one's address (--rdzv-endpoint"));
  CHECK(
      log.text.contains("localhost, on this machine: if node 0 is another one, give "
                        "--rdzv-endpoint with its address"));
}

TEST_CASE("waiting: who hosts at another machine's address hears that it may not be node 0") {
  plumbing::FakeClock clock;
  auto job = nodes_of(2);
  job.rdzv_backend = "static";
  const auto said = [&] {
    test::LoggedText log;
    WaitingWarning waiting(clock, job, false);
    waiting.on(moment::PhaseChanged{Phase::Joining, clock.now()});
    clock.advance(10s);
    return log.text.contains("not an address of this machine: if this is not node 0, give --node");
  };
  job.rdzv_endpoint = "198.51.100.9:29500";
  CHECK(said());
  job.node_rank = 1;
  CHECK(!said());
  job.node_rank = 0, job.rdzv_endpoint = "127.0.0.2:29500";
  CHECK(!said());
  job.rdzv_endpoint = "198.51.100.9:29500", job.rdzv_backend = "c10d";
  CHECK(!said());
}

TEST_CASE("waiting: one node waits for nobody, and a status line says it all the time") {
  plumbing::FakeClock clock;
  WaitingWarning alone(clock, nodes_of(1), false), seen(clock, nodes_of(2), true);
  alone.on(moment::PhaseChanged{Phase::Joining, clock.now()});
  seen.on(moment::PhaseChanged{Phase::Joining, clock.now()});
  CHECK(clock.armed() == 0);
}

}  // namespace
}  // namespace elastrun::agent
