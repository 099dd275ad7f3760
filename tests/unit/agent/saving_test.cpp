// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/saving.hpp"

#include "core/text.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "support/fake_run.hpp"

#include <chrono>
#include <doctest/doctest.h>
#include <variant>
#include <vector>

using namespace elastrun;
using namespace elastrun::agent;
using namespace std::chrono_literals;

namespace {

/// Rank 0, which tells its steps, and maybe others; they have no pages.
struct ToldSteps : test::FakeRun {
  explicit ToldSteps(int its_ranks = 1, bool all = false) : ranks(its_ranks) {
    job.preempt_ack_all = all;
    rendezvous::Round round;
    round.number = 1;
    saving.on(moment::RoundReady{round, {}});
    saving.on(moment::Started{round, workers, {}});
  }
  void steps(std::int64_t first, std::int64_t last, Duration each) {
    for (auto step = first; step <= last; ++step) {
      clock.advance(each);
      saving.on(moment::WorkerSaid{workers.front(), workers::StepDone{step}});
    }
  }
  Duration pace() const { return reached().back().pace; }

  std::vector<rendezvous::Reached> reached() const {
    std::vector<rendezvous::Reached> all;
    for (const auto& one : session.reports) all.push_back(std::get<rendezvous::Reached>(one));
    return all;
  }

  const int ranks;
  test::FakeClock& clock = time;
  test::FakeSession session;
  workers::SharedPages pages{job};
  Saving saving{*this, session, pages};
  std::vector<workers::Worker> workers = [this] {
    std::vector<workers::Worker> made(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) made[rank].rank = made[rank].local_rank = rank;
    return made;
  }();
};

}  // namespace

TEST_CASE("saving: steps that were heard at once were not done at once") {
  ToldSteps told;
  told.steps(0, 4, 300ms);
  told.clock.advance(1s);
  told.steps(5, 7, 0s);  // the agent stood still meanwhile
  told.saving.answer();
  told.clock.advance(30ms);
  REQUIRE(told.reached().size() == 1);
  CHECK(told.reached().back().step == 7);
  CHECK(told.pace() == Duration(2200ms) / 7);
  // Also where these are all that is known.
  ToldSteps begun;
  begun.steps(0, 3, 0s);
  begun.saving.answer();
  begun.clock.advance(30ms);
  REQUIRE(begun.reached().size() == 1);
  CHECK(begun.pace() == rendezvous::Preemption::kPaceLook);
}

TEST_CASE("saving: what came between steps makes none of them slower than it is now") {
  ToldSteps told;
  told.steps(0, 9, 5ms);
  told.clock.advance(60s);  // an evaluation
  told.steps(10, 10, 5ms);
  told.saving.answer();
  CHECK(told.reached().empty());
  told.steps(11, 13, 5ms);
  told.clock.advance(5ms);
  REQUIRE(told.reached().size() == 1);
  CHECK(told.reached().back().step == 13);
  CHECK(told.pace() == rendezvous::Preemption::kPaceLook / 3);
}

TEST_CASE("saving: an evaluation between the last step and the save is no part of it") {
  ToldSteps told;
  const auto& rank = told.workers.front();
  const auto save = [&](Duration takes) {
    told.clock.advance(takes);
    told.saving.on(moment::WorkerSaid{rank, workers::CheckpointDone{}});
    return told.saves.back();
  };
  const auto hooks_tell_begin = [&] {
    workers::GoodputEntries said;
    said.by_hooks = true;
    said.entries.resize(1);
    said.entries.front().entry.kind = goodput::MeasurementKind::SaveStart;
    said.entries.front().entry.time = to_seconds(told.clock.wall()) - 1;  // they tell it late
    told.saving.on(moment::WorkerSaid{rank, said});
  };
  told.steps(0, 0, 1s);
  CHECK(save(3s) == Duration(3s));
  // As the hooks of --goodput auto tell it; the second part belongs to the same save.
  told.steps(1, 1, 1s);
  told.clock.advance(20s);
  hooks_tell_begin();
  told.clock.advance(5s);
  hooks_tell_begin();
  CHECK(std::chrono::round<std::chrono::milliseconds>(save(3s)) == Duration(9s));
  // As the script does.
  told.steps(2, 2, 1s);
  told.saving.on(moment::WorkerSaid{rank, workers::PhaseEntered{"eval"}});
  told.clock.advance(20s);
  told.saving.on(moment::WorkerSaid{rank, workers::PhaseEntered{"train"}});
  CHECK(save(3s) == Duration(3s));
  // A begin that no step was before, or of a clock that is wrong, says nothing.
  told.steps(3, 3, 0s);
  hooks_tell_begin();
  CHECK(save(3s) == Duration(3s));
}

TEST_CASE(
    "saving: who fails before it has saved is told, and what holds is what was saved before") {
  ToldSteps told;
  const auto failed = [](int rank, process::ExitStatus status, bool stopped = false) {
    workers::Failure failure;
    failure.rank = rank;
    failure.status = status;
    failure.stopped_by_us = stopped;
    return failure;
  };
  const auto killed = failed(0, process::ExitStatus::signaled(9));
  told.steps(0, 3, 5ms);
  told.saving.on(moment::WorkerSaid{told.workers.front(), workers::CheckpointDone{2}});
  told.saving.failed_to_save({killed});  // nobody has asked for a save yet
  told.saving.order({.step = 4});
  told.steps(4, 4, 5ms);
  told.saving.failed_to_save({failed(0, process::ExitStatus::signaled(15), true)});
  CHECK(told.saving.account()->failure.empty());
  told.saving.failed_to_save({killed});
  auto account = told.saving.account();
  CHECK(account->failure == "rank 0 failed to save: it was killed by SIGKILL");
  CHECK(account->holds == 2);
  CHECK(account->lost() == 2);
  CHECK(account->checkpoint == -1);

  ToldSteps saves;
  saves.steps(0, 4, 5ms);
  saves.saving.order({.step = 4});
  saves.saving.on(moment::WorkerSaid{saves.workers.front(), workers::CheckpointDone{4}});
  saves.saving.failed_to_save({killed, failed(1, process::ExitStatus::exited(1))});
  account = saves.saving.account();
  CHECK(account->is_saved);
  CHECK(account->lost() == 0);
  CHECK(account->failure.empty());
}

TEST_CASE(
    "saving: a checkpoint on the way to the ordered step holds once all told it who have to") {
  for (const bool all : {false, true}) {
    CAPTURE(all);
    ToldSteps told(2, all);
    const auto save = [&told](std::size_t rank, std::int64_t step) {
      told.saving.on(moment::WorkerSaid{told.workers[rank], workers::CheckpointDone{step}});
      return told.saving.account()->holds;
    };
    told.steps(0, 3, 5ms);
    told.saving.order({.step = 9});
    CHECK(save(1, 5) == -1);
    CHECK(save(0, 5) == 5);
    CHECK(save(0, 6) == (all ? 5 : 6));
    CHECK(save(1, 6) == 6);
    CHECK(!told.saving.account()->is_saved);
  }
}
