// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/preemption.hpp"

#include <chrono>
#include <doctest/doctest.h>
#include <variant>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kStart{1h};

struct TwoNodes {
  Preemption preemption;
  explicit TwoNodes(bool all = false) : preemption(all) {
    preemption.assigned(1, 3, 0);
    preemption.assigned(2, 3, 1);
    preemption.ask("SIGTERM", 30s, kStart);
    CHECK(preemption.take().size() == 2);
  }
  std::int64_t told_step() {
    const auto told = preemption.take();
    REQUIRE(told.size() == 2);
    return std::get<SaveAt>(*told.front().second).step;
  }
};

}  // namespace

TEST_CASE("preemption: all are told one step, above all that any worker has done") {
  TwoNodes job;
  job.preemption.says(1, {3, 10, 5, 200ms}, kStart);
  CHECK(job.preemption.take().empty());
  job.preemption.says(2, {3, 11, -1, 200ms}, kStart);
  CHECK(job.told_step() == 13);  // 11 is done, 12 may be while the news travels
}

TEST_CASE("preemption: quick steps leave more room for the news") {
  TwoNodes job;
  job.preemption.says(1, {3, 1000, -1, 1ms}, kStart);
  job.preemption.says(2, {3, 1000, -1, 1ms}, kStart);
  CHECK(job.told_step() == 1032);  // 30 ms, though the answers came at once
}

TEST_CASE("preemption: the news has as much time as slow answers show that it needs") {
  TwoNodes job;
  job.preemption.says(1, {3, 1000, -1, 10ms}, kStart + 25ms);
  SUBCASE("a network of 50 ms, there and back") {
    job.preemption.says(2, {3, 1000, -1, 10ms}, kStart + Preemption::kPaceLook + 50ms);
    CHECK(job.told_step() == 1022);
  }
  SUBCASE("a node that has not answered at all") {
    job.preemption.tick(kStart + Preemption::kTimeToAnswer);
    CHECK(job.told_step() == 1102);
  }
}

TEST_CASE(
    "preemption: a node that does not answer is not waited for; without steps it is at once") {
  TwoNodes job;
  job.preemption.says(1, {3, -1}, kStart);
  CHECK(job.preemption.deadline() == kStart + Preemption::kTimeToAnswer);
  job.preemption.tick(kStart + Preemption::kTimeToAnswer);
  CHECK(job.told_step() == -1);
}

TEST_CASE("preemption: rank 0's save ends the wait, or that of every rank, or the deadline") {
  SUBCASE("rank 0") {
    TwoNodes job;
    for (const Peer peer : {1, 2}) job.preemption.says(peer, {3, 10}, kStart);
    job.preemption.says(2, {3, 11, 11, 0s, true}, kStart);
    CHECK_FALSE(job.preemption.take_over());
    job.preemption.says(1, {3, 11, 11, 0s, true}, kStart);
    CHECK(job.preemption.take_over());
    CHECK_FALSE(job.preemption.take_over());
    CHECK(job.preemption.text() == "preempted (SIGTERM): saved at step 11");
  }
  SUBCASE("all") {
    TwoNodes job(true);
    for (const Peer peer : {1, 2}) job.preemption.says(peer, {3, 10}, kStart);
    job.preemption.says(1, {3, 11, 11, 0s, true}, kStart);
    CHECK_FALSE(job.preemption.take_over());
    job.preemption.says(2, {3, 11, 11, 0s, true}, kStart);
    CHECK(job.preemption.take_over());
  }
  SUBCASE("deadline, which a second ask may bring nearer but not put off") {
    TwoNodes job;
    for (const Peer peer : {1, 2}) job.preemption.says(peer, {3, 10}, kStart);
    job.preemption.ask("again", 60s, kStart);
    CHECK(job.preemption.deadline() == kStart + 30s);
    job.preemption.ask("again", 10s, kStart);
    job.preemption.tick(kStart + 10s);
    CHECK(job.preemption.take_over());
    CHECK(job.preemption.text() == "preempted (SIGTERM) without a checkpoint");
  }
}

TEST_CASE("preemption: a save that has failed is told, of the lowest node, and ends as none") {
  TwoNodes job;
  for (const Peer peer : {1, 2}) job.preemption.says(peer, {3, 10}, kStart);
  job.preemption.says(2, {.round = 3, .step = 11, .failure = "rank 4 failed"}, kStart);
  CHECK(job.preemption.text() == "preempted (SIGTERM), but rank 4 failed");
  job.preemption.says(1, {.round = 3, .step = 11, .failure = "rank 0 failed"}, kStart);
  job.preemption.says(2, {.round = 3, .step = 11, .failure = "rank 5 failed"}, kStart);
  job.preemption.says(1, {3, 11, 11, 0s, true}, kStart);
  CHECK_FALSE(job.preemption.take_over());
  CHECK(job.preemption.cause().text == "preempted (SIGTERM), but rank 0 failed");
}

TEST_CASE("preemption: without a round, or when its last node goes, nothing is waited for") {
  Preemption idle;
  idle.ask("SIGTERM", 30s, kStart);
  CHECK(idle.take_over());
  TwoNodes job;
  job.preemption.gone(1, kStart);
  CHECK_FALSE(job.preemption.take_over());
  job.preemption.gone(2, kStart);
  CHECK(job.preemption.take_over());
}

TEST_CASE("preemption: words of another round or of strangers change nothing") {
  TwoNodes job;
  job.preemption.says(1, {2, 10}, kStart);
  job.preemption.says(9, {3, 10}, kStart);
  job.preemption.says(2, {3, INT64_MAX, -1, 1ns}, kStart);
  job.preemption.says(1, {3, 1}, kStart);
  CHECK(job.told_step() == -1);  // a number that no step can follow
}
