// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/agent.hpp"

#include "core/text.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "rendezvous/session/make_session.hpp"
#include "support/fake_run.hpp"

#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <unistd.h>
#include <variant>
#include <vector>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using process::ExitStatus;
using EndingKind = Ending::Kind;

struct FakeStore final : RoundStore {
  Result<std::uint16_t> prepare() override {
    if (refuses) return fail(Code::Store, "the port is in use");
    return static_cast<std::uint16_t>(5000 + ++prepared);
  }
  void begin(const rendezvous::Round& round) override { served = round.master_port; }
  bool serves_workers() const override { return true; }
  bool serves_others() const override { return needed; }
  bool needed = false;
  int prepared = 0;
  std::uint16_t served = 0;
  bool refuses = false;
};

struct Recorder final : Observes<Recorder> {
  void on(const moment::PhaseChanged& seen) { phases.push_back(seen.phase); }
  void on(const moment::Failed& seen) { failures.push_back(seen.judgement.first().rank); }
  void on(const HangSeen& seen) { hangs.push_back(seen.hang->attempt); }
  void on(const TimerExpired& seen) { timers.push_back("! " + seen.timer->scope); }
  void on(const TimerKilled& seen) { timers.push_back("x " + seen.timer->scope); }
  std::vector<Phase> phases;
  std::vector<int> failures, hangs;
  std::vector<std::string> timers;
};

/// One that hosts the rendezvous, and waits for nodes that do not hang up.
struct WaitingSession final : rendezvous::Session {
  explicit WaitingSession(std::unique_ptr<rendezvous::Session> other) : inner(std::move(other)) {}
  void open(OnPush on_push) override { inner->open(std::move(on_push)); }
  void join(rendezvous::Node self) override { inner->join(std::move(self)); }
  void report(rendezvous::Report report) override {
    if (others_work && std::holds_alternative<rendezvous::Succeeded>(report)) return;
    inner->report(std::move(report));
  }
  void close(std::function<void()> on_closed) override { closed = std::move(on_closed); }
  std::string backend() const override { return inner->backend(); }
  std::string run_id() const override { return inner->run_id(); }
  std::unique_ptr<rendezvous::Session> inner;
  std::function<void()> closed;
  bool others_work = false;  // so nobody says that the job is over
};

struct Folder {
  Folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = "/tmp/elastrun_agent_test.XXXXXX";
};

/// One node, its workers played by the test.
struct Node : test::FakeRun {
  Folder folder;
  test::FakeClock& clock = time;
  test::FakeLauncher& launcher = started;
  FakeStore store;
  Recorder recorder;
  std::unique_ptr<rendezvous::Session> session;
  workers::SharedPages pages{job};
  std::optional<Saving> saving;
  std::optional<Agent> agent;
  std::optional<JobResult> result;
  int workers;

  explicit Node(int workers_wanted, int max_restarts = 0, Duration settle = 0ms, bool host = false)
      : workers(workers_wanted) {
    rendezvous::SessionSettings local;
    local.rules.max_restarts = max_restarts;
    session = rendezvous::make_local_session(loop, clock, local);
    if (host) session = std::make_unique<WaitingSession>(std::move(session));
    job.max_restarts = max_restarts;
    job.monitor_interval = 2 * to_seconds(settle);
    rendezvous::Node self;
    self.id = "node";
    self.address = "127.0.0.1";
    self.local_world_size = workers;
    saving.emplace(*this, *session, pages);
    agent.emplace(*this, *session, store, recorder, *saving, std::move(self), true);
    agent->run([this](JobResult ended) { result = std::move(ended); });
    settle_down();
  }
  void post(Fact fact) override { agent->post(std::move(fact)); }
  Result<std::vector<workers::WorkerPlan>> plan(const rendezvous::Round& round) override {
    std::vector<workers::WorkerPlan> all;
    for (int i = 0; i < workers; ++i) {
      workers::WorkerPlan plan;
      plan.rank = plan.local_rank = i;
      plan.request.argv = {"attempt " + std::to_string(round.attempt)};
      plan.error_file = error_file(i);
      all.push_back(std::move(plan));
    }
    return all;
  }
  std::string error_file(int rank) const { return folder.path + "/" + std::to_string(rank); }
  void blames_a_peer(int rank) const {
    REQUIRE(workers::write_error_file(error_file(rank), "RuntimeError: Connection closed by peer",
                                      clock.wall()));
  }
  void settle_down() {
    do {
      loop.restart();
      clock.advance(0ms);  // what is due now
    } while (loop.poll() > 0);
  }
  void end(std::size_t index, ExitStatus status) {
    launcher.end(index, status);
    settle_down();
  }
  void obey() {
    launcher.obey();
    settle_down();
  }
  void advance(Duration time) {
    clock.advance(time);
    settle_down();
  }
  EndingKind ended() {
    REQUIRE(result.has_value());
    CHECK(launcher.alive() == 0);
    return result->ending.kind;
  }
};

TEST_CASE("agent: workers that all succeed make a job that succeeds") {
  Node node(2);
  REQUIRE(node.launcher.size() == 2);
  CHECK(node.agent->phase() == Phase::Running);
  node.end(0, ExitStatus::exited(0));
  CHECK_FALSE(node.result.has_value());
  node.end(1, ExitStatus::exited(0));
  CHECK(node.ended() == EndingKind::Succeeded);
  CHECK(node.result->attempts.size() == 1);
}

TEST_CASE(
    "agent: a node stays past the exit barrier for as long as others need it, and no longer") {
  Node node(1, 0, 0ms, true);
  auto& session = dynamic_cast<WaitingSession&>(*node.session);
  session.others_work = node.store.needed = true;
  node.end(0, ExitStatus::exited(0));
  for (const Duration time : {Duration(300s), Duration(1h)}) {
    node.clock.advance(time);
    node.settle_down();
    CHECK(node.agent->phase() == Phase::Barrier);
  }
  node.store.needed = false;
  node.clock.advance(1s);
  node.settle_down();
  REQUIRE(node.agent->phase() == Phase::Ended);
  session.closed();
  CHECK(node.ended() == EndingKind::Succeeded);
}

TEST_CASE("agent: after a failure the group is started again, with the next attempt's number") {
  Node node(2, 1);
  node.end(1, ExitStatus::exited(3));
  CHECK(node.launcher[0].signals == std::vector{SIGTERM});
  CHECK_MESSAGE(node.launcher.size() == 2, "not before the old group is gone");
  node.obey();
  REQUIRE(node.launcher.size() == 4);
  CHECK(node.launcher[2].request.argv[0] == "attempt 1");
  CHECK_MESSAGE(node.store.prepared == 2, "a fresh store for each round");
  CHECK(node.store.served == 5002);
  node.end(2, ExitStatus::exited(0));
  node.end(3, ExitStatus::exited(0));
  CHECK(node.ended() == EndingKind::Succeeded);
  CHECK(node.result->restarts == 1);
  CHECK(node.result->attempts.size() == 2);
}

TEST_CASE("agent: a store is needed as long as groups of other nodes may take to end") {
  Node node(1);
  const auto now = node.clock.now();
  SUBCASE("not after the success of the whole job") {
    node.end(0, ExitStatus::exited(0));
    CHECK(node.ended() == EndingKind::Succeeded);
    CHECK(node.result->store_needed_until == now);
  }
  SUBCASE("after a failure, since that is known") {
    node.end(0, ExitStatus::exited(3));
    CHECK(node.ended() == EndingKind::WorkersFailed);
    CHECK(node.result->store_needed_until == now + 30s + process::kKillBound);
  }
}

TEST_CASE("agent: when no restart is left the first failure is the verdict") {
  Node node(3);
  node.end(1, ExitStatus::exited(3));
  node.obey();
  CHECK(node.ended() == EndingKind::WorkersFailed);
  REQUIRE(node.result->judgement.has_value());
  CHECK(node.result->judgement->first().rank == 1);
  CHECK(node.result->judgement->failures.size() == 3);
  CHECK(node.recorder.failures == std::vector{1});
}

TEST_CASE("agent: a failure that explains itself stops the others at that moment") {
  Node node(3, 0, 50ms);
  node.end(1, ExitStatus::exited(1));
  CHECK(node.launcher[0].signals == std::vector{SIGTERM});
  node.obey();
  CHECK(node.ended() == EndingKind::WorkersFailed);
}

TEST_CASE("agent: after a victim the culprit has a moment to end by itself") {
  Node node(3, 0, 50ms);
  node.blames_a_peer(0);
  node.end(0, ExitStatus::exited(1));
  CHECK(node.launcher[2].signals.empty());
  node.advance(20ms);
  CHECK(node.launcher[2].signals.empty());
  node.end(1, ExitStatus::exited(4));
  CHECK_MESSAGE(node.launcher[2].signals == std::vector{SIGTERM}, "at once, not after 30 ms more");
  node.obey();
  CHECK(node.ended() == EndingKind::WorkersFailed);
  CHECK(node.result->judgement->first().rank == 1);
  CHECK(node.recorder.failures == std::vector{1});
}

TEST_CASE("agent: a victim whose culprit is elsewhere is waited with for a moment only") {
  Node node(2, 0, 50ms);
  node.blames_a_peer(0);
  node.end(0, ExitStatus::exited(1));
  node.advance(49ms);
  CHECK(node.launcher[1].signals.empty());
  node.advance(1ms);
  CHECK(node.launcher[1].signals == std::vector{SIGTERM});
  node.obey();
  CHECK(node.ended() == EndingKind::WorkersFailed);
  CHECK(node.result->judgement->first().rank == 0);
}

TEST_CASE("agent: twenty restarts in a row leave nothing behind") {
  Node node(2, 20);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto first = static_cast<std::size_t>(2 * attempt);
    node.end(first, ExitStatus::signaled(SIGKILL));
    node.obey();
  }
  REQUIRE(node.launcher.size() == 42);
  CHECK(node.launcher.alive() == 2);
  node.end(40, ExitStatus::exited(0));
  node.end(41, ExitStatus::exited(0));
  CHECK(node.ended() == EndingKind::Succeeded);
  CHECK(node.result->restarts == 20);
}

TEST_CASE("agent: a signal goes to the workers, and their codes do not matter") {
  Node node(2, 3);
  node.agent->signal(SIGINT, false);
  node.settle_down();
  CHECK(node.launcher[0].signals == std::vector{SIGINT});
  node.end(0, ExitStatus::exited(0));
  node.end(1, ExitStatus::exited(7));
  CHECK(node.ended() == EndingKind::Signalled);
  CHECK(node.launcher.size() == 2);
}

TEST_CASE("agent: a second signal does not wait for the deaf, if its sender insists") {
  Node node(1);
  node.launcher[0].deaf = true;
  node.agent->signal(SIGTERM, false);
  node.settle_down();
  node.agent->signal(SIGHUP, false);
  node.settle_down();
  CHECK(node.launcher[0].signals == std::vector{SIGTERM});
  node.agent->signal(SIGTERM, true);
  node.settle_down();
  CHECK(node.launcher[0].signals == std::vector{SIGTERM, SIGKILL});
  node.obey();
  CHECK(node.ended() == EndingKind::Signalled);
}

TEST_CASE("agent: a host that waits for other nodes ends when somebody insists") {
  Node node(1, 0, 0ms, true);
  node.agent->signal(SIGINT, false);
  node.settle_down();
  node.obey();
  CHECK(node.agent->phase() == Phase::Ended);
  CHECK_FALSE(node.result.has_value());
  node.agent->signal(SIGINT, true);
  node.settle_down();
  CHECK(node.ended() == EndingKind::Signalled);
  static_cast<WaitingSession&>(*node.session).closed();  // too late to matter
  node.settle_down();
}

TEST_CASE("agent: a worker that dies of the signal which is on its way to us is no failure") {
  Node node(2, 3);
  node.end(0, ExitStatus::signaled(SIGTERM));
  SUBCASE("it comes") {
    node.end(1, ExitStatus::signaled(SIGTERM));
    node.advance(249ms);
    node.agent->signal(SIGTERM, false);
    node.settle_down();
    CHECK(node.ended() == EndingKind::Signalled);
    CHECK(node.recorder.failures.empty());
    CHECK(node.launcher.size() == 2);
  }
  SUBCASE("it does not come") {
    node.advance(249ms);
    CHECK(node.recorder.failures.empty());
    node.advance(1ms);
    CHECK(node.recorder.failures == std::vector{0});
    node.obey();
    CHECK(node.launcher.size() == 4);
  }
  SUBCASE("another one fails in a way of its own") {
    node.end(1, ExitStatus::exited(3));
    CHECK(node.recorder.failures.size() == 1);
    node.advance(1s);
    CHECK(node.launcher.size() == 4);
    CHECK(node.recorder.failures.size() == 1);
  }
}

TEST_CASE("agent: the dead guardian's job is killed") {
  Node node(2);
  node.agent->guardian_gone();
  node.settle_down();
  CHECK(node.launcher[1].signals == std::vector{SIGKILL});
  node.obey();
  CHECK(node.ended() == EndingKind::GuardianLost);
}

TEST_CASE("agent: a start that fails half-way ends the job with the reason and no worker") {
  Node node(2, 1);
  node.launcher.fails_at = 3;  // the second worker of the second attempt
  node.end(0, ExitStatus::exited(1));
  node.obey();
  CHECK(node.ended() == EndingKind::NoStart);
  CHECK(node.result->ending.why == "too many open files");
}

TEST_CASE("agent: a store that cannot listen ends the job before anything starts") {
  Node node(1, 1);
  node.store.refuses = true;
  node.end(0, ExitStatus::exited(1));
  CHECK(node.ended() == EndingKind::NoStart);
  CHECK(node.result->ending.why == "the port is in use");
  CHECK(node.launcher.size() == 1);
}

TEST_CASE("agent: phases are told in order") {
  Node node(1);
  node.end(0, ExitStatus::exited(0));
  REQUIRE(node.recorder.phases.size() >= 2);
  CHECK(std::ranges::find(node.recorder.phases, Phase::Running) != node.recorder.phases.end());
  CHECK(node.recorder.phases.back() == Phase::Ended);
}

TEST_CASE("agent: a process is known by the session of its worker") {
  Node node(1);
  CHECK(node.agent->worker_of(1000) != nullptr);
  CHECK(node.agent->worker_of(::getpid()) == nullptr);
}

TEST_CASE("agent: facts of hangs and timers reach observers in order, later, and change nothing") {
  Node node(1);
  const auto phases = node.recorder.phases;
  ExpiredTimer timer;
  timer.scope = "load";
  node.agent->post(TimerExpired{std::make_shared<ExpiredTimer>(timer)});
  node.agent->post(TimerKilled{std::make_shared<ExpiredTimer>(timer)});
  JobHang hang;
  hang.attempt = 3;
  node.agent->post(HangSeen{std::make_shared<JobHang>(hang)});
  CHECK(node.recorder.timers.empty());
  CHECK(node.recorder.hangs.empty());
  node.settle_down();
  CHECK(node.recorder.timers == std::vector<std::string>{"! load", "x load"});
  CHECK(node.recorder.hangs == std::vector{3});
  CHECK(node.recorder.phases == phases);
  CHECK_FALSE(node.result);
}

struct Leaving : test::FakeRun {
  LeaveTime leave{*this};
  std::size_t overs() const { return facts.size(); }
};

TEST_CASE("leave time: after the save workers have a moment to end by themselves") {
  Leaving job;
  job.leave.begin(60s);
  job.time.advance(10s);
  job.leave.saved();
  job.time.advance(LeaveTime::kMoment - 100ms);
  CHECK(job.overs() == 0);
  job.time.advance(100ms);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: who writes goes on, until the time is over") {
  Leaving job;
  job.leave.begin(10s);
  job.leave.saved();
  for (int second = 0; second < 9; ++second) {
    job.bytes += LeaveTime::kWrites;
    job.time.advance(1s);
    CHECK(job.overs() == 0);
  }
  job.bytes += LeaveTime::kWrites;
  job.time.advance(1s);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: a log is no checkpoint") {
  Leaving job;
  job.leave.begin(60s);
  job.leave.saved();
  job.bytes += 1000;
  job.time.advance(LeaveTime::kMoment);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: without a word of the coordinator it is over after the time to save") {
  Leaving job;
  job.leave.begin(10s);
  job.time.advance(10s);
  CHECK(job.overs() == 0);
  job.time.advance(LeaveTime::kSilence);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: at the end of the time there is no moment left") {
  Leaving job;
  job.leave.begin(10s);
  job.time.advance(10s);
  job.leave.saved();
  job.time.advance(0s);
  CHECK(job.overs() == 1);
}

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

}  // namespace elastrun::agent
