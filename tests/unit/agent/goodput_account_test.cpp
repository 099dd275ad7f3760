// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput/goodput_account.hpp"

#include "support/fake_clock.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <initializer_list>
#include <numeric>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using goodput::Bucket;
using process::ExitStatus;

std::vector<workers::Worker> group_of(std::initializer_list<ExitStatus> statuses) {
  std::vector<workers::Worker> group;
  for (const auto& status : statuses) {
    auto& worker = group.emplace_back();
    worker.exit = process::Exit{status, {}, {}, 0};
  }
  return group;
}

const auto kWell = ExitStatus::exited(0), kBadly = ExitStatus::exited(1);

/// A job whose time passes phase by phase, as its agent would tell it.
struct AccountedJob {
  test::FakeClock clock;
  GoodputAccount account;
  explicit AccountedJob(bool several_nodes = false) : account(clock, clock.now(), several_nodes) {}

  AccountedJob& in(Phase phase, Duration time) {
    account.on(moment::PhaseChanged{phase, clock.now()});
    clock.advance(time);
    return *this;
  }
  AccountedJob& started() { return in(Phase::Joining, 1s).in(Phase::Starting, 2s); }
  void ended(Ending::Kind kind) {
    JobResult result;
    result.ending.kind = kind;
    account.on(moment::PhaseChanged{Phase::Ended, clock.now()});
    account.on(moment::Ended{result, nullptr});
  }
  Duration of(Bucket bucket) const {
    const auto summary = account.summary();
    CHECK(std::accumulate(summary.buckets.begin(), summary.buckets.end(), Duration{}) ==
          summary.elapsed);
    return summary.of(bucket);
  }
};

}  // namespace

TEST_CASE("account: a job of one node starts up, runs and stops") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s).in(Phase::Stopping, 1s);
  job.account.on(moment::Stopped{group_of({kWell, kWell}), 1s});
  job.in(Phase::Barrier, 0s).ended(Ending::Kind::Succeeded);
  CHECK(job.of(Bucket::Startup) == 3s);
  CHECK(job.of(Bucket::Running) == 20s);
  CHECK(job.of(Bucket::Stopping) == 1s);
  CHECK(job.account.summary().restarts == 0);
}

TEST_CASE("account: the connections of the ranks tell imports and initialization apart") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s);
  job.account.on(moment::Joined{false});
  job.clock.advance(5s);
  job.account.on(moment::Joined{true});
  job.clock.advance(3s);
  job.account.step(0);
  job.clock.advance(10s);
  CHECK(job.of(Bucket::Preparation) == 20s);
  CHECK(job.of(Bucket::Initialization) == 5s);
  CHECK(job.of(Bucket::Running) == 3s);
  CHECK(job.of(Bucket::Unexplained) == 10s);  // nothing tells yet what a step takes
  CHECK(job.account.summary().restarts == 0);

  // After a restart the same; a step ends what nobody has ended.
  job.in(Phase::Stopping, 1s);
  job.account.on(moment::Stopped{group_of({kBadly}), 1s});
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Starting, 1s).in(Phase::Running, 4s);
  job.account.on(moment::Joined{false});
  job.clock.advance(2s);
  job.account.step(1);
  job.clock.advance(7s);
  CHECK(job.of(Bucket::Preparation) == 24s);
  CHECK(job.of(Bucket::Initialization) == 7s);
  CHECK(job.of(Bucket::Unexplained) == 7s);  // step 1 was broken off, and done again
  CHECK(job.of(Bucket::Lost) == 10s);
  CHECK(job.account.summary().restarts == 1);
  job.account.on(moment::Joined{false});  // late: there is a step already
  CHECK(job.of(Bucket::Preparation) == 24s);
}

TEST_CASE("account: ranks that never connect take nothing from what may be training") {
  AccountedJob job;
  job.started().in(Phase::Running, 2s);
  job.account.on(moment::Joined{false});
  job.clock.advance(10s);
  CHECK(job.of(Bucket::Preparation) == 2s);
  CHECK(job.of(Bucket::Running) == 10s);
  CHECK(job.of(Bucket::Initialization) == 0s);
  CHECK(job.account.summary().goodput_at_most() > 0.6);
}

TEST_CASE("account: of a node that gets rank 0 later the steps before count, too") {
  AccountedJob job(true);
  rendezvous::Round round;
  round.rank_base = 2;
  const auto train = [&](int rank, std::int64_t first) {
    job.account.on(moment::PhaseChanged{Phase::Starting, job.clock.now()});
    job.account.on(moment::RoundReady{round, {}});
    job.account.on(moment::PhaseChanged{Phase::Running, job.clock.now()});
    for (auto step = first; step < first + 20; ++step) {
      job.clock.advance(1s);
      for (int i : {rank, rank + 1}) {
        workers::Worker worker;
        worker.rank = i;
        job.account.on(moment::WorkerSaid{worker, workers::StepDone{step}});
      }
    }
  };
  train(2, 0);
  CHECK(job.of(Bucket::Productive) == 20s);
  rendezvous::Restart order;
  order.cause.kind = rendezvous::Cause::Kind::NodeLost;
  job.account.on(moment::Restarting{order});
  job.account.on(moment::Stopped{group_of({kWell, kWell}), 0s});
  round.rank_base = 0;
  train(0, 15);
  CHECK(job.of(Bucket::Productive) == 35s);
  CHECK(job.of(Bucket::Lost) == 5s);
  CHECK(job.account.summary().goodput());
}

TEST_CASE("account: recorders, steps and phases of rank 0 count, checkpoints of all that save") {
  AccountedJob job;
  job.started().in(Phase::Running, 1s);
  workers::Worker zero, one;
  zero.rank = 0;
  one.rank = 1;
  const auto posix = [&] {
    return std::chrono::duration<double>(job.clock.wall().time_since_epoch()).count();
  };
  const auto say = [&](const workers::Worker& who, goodput::MeasurementKind kind, double ago) {
    workers::GoodputEntries said;
    said.entries.push_back({{kind, -1, 0, posix() - ago}, {}, {}});
    job.account.on(moment::WorkerSaid{who, said});
  };
  say(zero, goodput::MeasurementKind::DataLoadingStart, 0);
  say(one, goodput::MeasurementKind::DataLoadingEnd, 0);
  job.clock.advance(4s);
  say(zero, goodput::MeasurementKind::DataLoadingEnd, 1);
  job.account.on(moment::WorkerSaid{one, workers::StepDone{7}});
  CHECK_FALSE(job.account.summary().last_step);
  job.account.on(moment::WorkerSaid{one, workers::CheckpointDone{3}});
  CHECK_MESSAGE(!job.account.summary().last_checkpoint, "what rank 1 alone saves is its own");
  job.account.on(moment::WorkerSaid{zero, workers::CheckpointDone{4}});
  CHECK_MESSAGE(job.account.summary().last_checkpoint == 3, "a part of 4 is not there");
  job.account.on(moment::WorkerSaid{one, workers::CheckpointDone{4}});
  CHECK(job.account.summary().last_checkpoint == 4);
  CHECK(job.of(Bucket::DataLoading) == 3s);
  CHECK(job.of(Bucket::Running) == 2s);
  job.account.on(moment::WorkerSaid{one, workers::PhaseEntered{"eval"}});
  job.account.on(moment::WorkerSaid{zero, workers::PhaseEntered{"Validation"}});
  job.clock.advance(5s);
  job.account.on(moment::WorkerSaid{one, workers::PhaseEntered{"train"}});
  job.account.on(moment::WorkerSaid{zero, workers::PhaseEntered{"export"}});
  job.clock.advance(7s);
  job.account.on(moment::WorkerSaid{zero, workers::PhaseEntered{"train"}});
  CHECK(job.of(Bucket::Evaluation) == 5s);
  CHECK(job.of(Bucket::Custom) == 7s);
}

TEST_CASE("account: on several nodes waiting for them is no start-up") {
  AccountedJob job(true);
  job.in(Phase::Joining, 30s).in(Phase::Starting, 2s).in(Phase::Running, 5s);
  CHECK(job.of(Bucket::Rendezvous) == 30s);
  CHECK(job.of(Bucket::Startup) == 2s);
}

TEST_CASE("account: all from a failure to the next start is restart, also before it is ordered") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s).in(Phase::Settling, 1s).in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly, kWell}), 2s});
  job.in(Phase::Waiting, 3s);
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Joining, 4s).in(Phase::Starting, 5s).in(Phase::Running, 10s);
  CHECK(job.of(Bucket::Restart) == 15s);
  CHECK(job.of(Bucket::Stopping) == 0s);
  CHECK(job.of(Bucket::Running) == 30s);
  CHECK(job.account.summary().restarts == 1);
}

TEST_CASE("account: a failure without a restart is the end of the job") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s).in(Phase::Settling, 1s).in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly}), 2s});
  job.ended(Ending::Kind::WorkersFailed);
  CHECK(job.of(Bucket::Stopping) == 3s);
  CHECK(job.of(Bucket::Restart) == 0s);
}

TEST_CASE("account: no checkpoint told, and what a failure costs is not known") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s);
  job.account.step(1);
  job.in(Phase::Stopping, 1s);
  job.account.on(moment::Stopped{group_of({kBadly}), 1s});
  job.ended(Ending::Kind::WorkersFailed);
  CHECK(job.of(Bucket::Lost) == 0s);
  CHECK(job.of(Bucket::Running) == 20s);
  CHECK_FALSE(job.account.summary().loss_known);
}

TEST_CASE("account: a checkpoint saved while the workers are being stopped still counts") {
  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.step(1);
  job.account.checkpoint(1);
  job.clock.advance(10s);
  job.account.step(2);
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Stopping, 1s);
  job.account.checkpoint(2);
  job.clock.advance(1s);
  job.account.on(moment::Stopped{group_of({ExitStatus::signaled(SIGTERM)}), 2s});
  CHECK(job.of(Bucket::Lost) == 0s);
  CHECK(job.of(Bucket::Restart) == 2s);
  CHECK(job.account.summary().loss_known);
}

TEST_CASE("account: what ran since the checkpoint is lost, whoever is to blame") {
  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.checkpoint(-1);
  job.clock.advance(7s);
  SUBCASE("another node, while ours run") {
    job.account.on(moment::Restarting{{}});
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({ExitStatus::signaled(SIGTERM)}), 1s});
  }
  SUBCASE("another node, when ours have all succeeded") {
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({kWell}), 1s});
    job.in(Phase::Barrier, 60s);
    CHECK(job.of(Bucket::Lost) == 0s);
    job.account.on(moment::Restarting{{}});
    CHECK(job.of(Bucket::Stopping) == 61s);
  }
  SUBCASE("a worker of ours") {
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({kWell, kBadly}), 1s});
  }
  SUBCASE("a signal to us, which the workers took well") {
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({kWell}), 1s});
    job.ended(Ending::Kind::Signalled);
  }
  CHECK(job.of(Bucket::Lost) == 7s);
  CHECK(job.of(Bucket::Running) == 10s);
}

TEST_CASE("account: an order to restart that comes twice, or while joining, changes nothing") {
  AccountedJob job(true);
  job.in(Phase::Joining, 5s);
  job.account.on(moment::Restarting{{}});
  job.clock.advance(5s);
  CHECK(job.of(Bucket::Rendezvous) == 10s);
  job.in(Phase::Starting, 1s).in(Phase::Running, 10s);
  job.account.checkpoint(-1);
  job.account.on(moment::Restarting{{}});
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly}), 2s});
  job.in(Phase::Joining, 3s).in(Phase::Starting, 4s).in(Phase::Running, 0s);
  CHECK(job.of(Bucket::Restart) == 6s);
  CHECK(job.of(Bucket::Rendezvous) == 13s);
  CHECK(job.of(Bucket::Stopping) == 0s);
}

TEST_CASE("account: ended in the middle of a restart") {
  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.checkpoint(-1);
  job.clock.advance(2s);
  job.in(Phase::Settling, 1s);
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly}), 2s});
  job.in(Phase::Joining, 3s).in(Phase::Starting, 4s);
  job.ended(Ending::Kind::NoStart);
  job.clock.advance(1s);
  CHECK(job.of(Bucket::Restart) == 10s);
  CHECK(job.of(Bucket::Stopping) == 1s);
  CHECK(job.of(Bucket::Lost) == 2s);
  CHECK(job.account.summary().restarts == 0);  // the workers never ran again
}

TEST_CASE("account: a job without workers, and a clock that is set back") {
  AccountedJob spare(true);
  spare.in(Phase::Joining, 9s).ended(Ending::Kind::NotNeeded);
  CHECK(spare.of(Bucket::Rendezvous) == 9s);
  CHECK(spare.account.summary().goodput_at_most() == 0);

  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.on(moment::PhaseChanged{Phase::Settling,
                                      job.clock.now() - 60s});  // before it ran: not one second
  job.account.on(moment::Restarting{{}});
  job.account.on(moment::Stopped{{}, 0s});
  CHECK(job.of(Bucket::Running) == 0s);
  CHECK(job.of(Bucket::Restart) == 10s);
  CHECK(job.of(Bucket::Startup) == 3s);
}

}  // namespace elastrun::agent
