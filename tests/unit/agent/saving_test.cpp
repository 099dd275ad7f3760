// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/saving.hpp"

#include "spec/job_spec.hpp"
#include "support/fake_clock.hpp"

#include <chrono>
#include <doctest/doctest.h>
#include <variant>
#include <vector>

using namespace elastrun;
using namespace elastrun::agent;
using namespace std::chrono_literals;

namespace {

/// Rank 0 alone, which tells its steps; it has no page.
struct Told {
  Told() {
    rendezvous::Round round;
    round.number = 1;
    saving.round_ready(round, {});
    saving.started(round, group, {});
  }
  void steps(std::int64_t first, std::int64_t last, Duration each) {
    for (auto step = first; step <= last; ++step) {
      clock.advance(each);
      saving.worker_said(group.front(), workers::StepDone{step});
    }
  }
  Duration pace() const { return reached.back().pace; }

  test::FakeClock clock;
  spec::JobSpec spec;
  SharedPages pages{spec};
  std::vector<rendezvous::Reached> reached;
  Saving saving{{.clock = clock,
                 .report =
                     [this](rendezvous::Report report) {
                       reached.push_back(std::get<rendezvous::Reached>(report));
                     },
                 .pages = pages}};
  std::vector<workers::Worker> group{1};
};

}  // namespace

TEST_CASE("saving: steps that were heard at once were not done at once") {
  Told told;
  told.steps(0, 4, 300ms);
  told.clock.advance(1s);
  told.steps(5, 7, 0s);  // the agent stood still meanwhile
  told.saving.answer();
  told.clock.advance(30ms);
  REQUIRE(told.reached.size() == 1);
  CHECK(told.reached.back().step == 7);
  CHECK(told.pace() == Duration(2200ms) / 7);
  // Also where these are all that is known.
  Told begun;
  begun.steps(0, 3, 0s);
  begun.saving.answer();
  begun.clock.advance(30ms);
  REQUIRE(begun.reached.size() == 1);
  CHECK(begun.pace() == 30ms);
}

TEST_CASE("saving: what came between steps makes none of them slower than it is now") {
  Told told;
  told.steps(0, 9, 5ms);
  told.clock.advance(60s);  // an evaluation
  told.steps(10, 10, 5ms);
  told.saving.answer();
  CHECK(told.reached.empty());
  told.steps(11, 15, 5ms);
  told.clock.advance(5ms);
  REQUIRE(told.reached.size() == 1);
  CHECK(told.reached.back().step == 15);
  CHECK(told.pace() == 6ms);
}
