// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_telemetry.hpp"
#include "core/json.hpp"
#include "unit/agent/records.hpp"

#include <algorithm>
#include <csignal>
#include <unistd.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using process::ExitStatus;
using EndingKind = Ending::Kind;
using Names = std::vector<std::string>;

const std::string kTorchAgentScope = "torchelastic.agent",
                  kTorchWorkerScope = "torchelastic.worker";

/// "RENDEZVOUS" of "torchelastic.worker.status.RENDEZVOUS".
Names states(const Listening& job) {
  Names all = job.names();
  for (auto& name : all) name = name.substr(name.rfind('.') + 1);
  return all;
}

rendezvous::Round second_of_two(int attempt = 0) {
  rendezvous::Round round;
  round.members.resize(2);
  round.group_rank = 1;
  round.rank_base = 4;
  round.role_rank_base = 4;
  round.role_world_size = 6;
  round.attempt = attempt;
  return round;
}

JobResult result_of(EndingKind kind) {
  JobResult result;
  result.ending.kind = kind;
  return result;
}

telemetry::events::AgentFacts trainer() {
  telemetry::events::AgentFacts facts;
  facts.run_id = "R";
  facts.role = "trainer";
  return facts;
}

struct ElasticJob : Listening {
  spec::JobSpec job;
  ElasticRecords records{pipeline, trainer(), job};
  explicit ElasticJob(const std::string& scope, int max_restarts = 0) : Listening(scope) {
    job.max_restarts = max_restarts;
  }
  ElasticJob& round(Duration waited, const std::vector<workers::Worker>& group, int attempt = 0) {
    records.on(moment::PhaseChanged{Phase::Joining, clock.now()});
    clock.advance(waited);
    auto round = second_of_two(attempt);
    round.restarts_left = job.max_restarts - attempt;
    records.on(moment::RoundReady{round, waited});
    records.on(moment::Started{second_of_two(attempt), group, 3ms});
    return *this;
  }
};

json::object inner(const telemetry::Record& record) {
  return parse_json(attribute<std::string>(record, "metadata"))->as_object();
}

}  // namespace

TEST_CASE("elastic records: who wants each sample hears of workers as often as torchrun looks") {
  ElasticJob job("nothing", 3);
  const auto each = std::make_shared<Heard>();
  job.records.look_by(job.clock);
  auto group = workers_of({ExitStatus::exited(0)});
  group[0].pid = ::getpid();
  job.round(1s, group);
  CHECK(job.clock.armed() == 0);  // nobody wants them: nothing wakes up
  job.pipeline.route({.scope = "torchelastic", .each = true}, each);
  job.round(1s, group, 1);
  each->records.clear();
  job.clock.advance(1s);
  const auto healthy = [&] {
    return std::ranges::count(each->records, "workers.trainer.healthy", &telemetry::Record::name);
  };
  CHECK(healthy() == 10);
  CHECK(each->records.size() == 40);
  CHECK(each->records[1].name == "LocalElasticAgent._monitor_workers.duration.ms");
  CHECK(each->records[2].name == "workers.trainer.remaining_restarts");
  CHECK(std::get<std::int64_t>(each->records[2].value) == 2);
  job.records.on(moment::Stopped{group, 1s});
  job.clock.advance(1s);
  CHECK(healthy() == 10);
}

TEST_CASE("elastic records: a failure was looked at from its end until it was judged") {
  ElasticJob job("torchelastic");
  job.round(1s, workers_of({ExitStatus::exited(1)}));
  workers::Judgement judgement;
  judgement.failures.emplace_back().at = job.clock.now();
  job.clock.advance(250ms);
  job.heard->records.clear();
  job.records.on(moment::Failed{judgement});
  CHECK(job.heard->records[1].name == "LocalElasticAgent._monitor_workers.duration.ms");
  CHECK(std::get<std::int64_t>(job.heard->records[1].value) == 250);
}

TEST_CASE("elastic records: a job that succeeds is told as torchelastic would") {
  ElasticJob job("torchelastic.*");
  const auto group = workers_of({ExitStatus::exited(0), ExitStatus::exited(0)});
  job.round(250ms, group);
  job.clock.advance(90s);
  job.records.on(moment::Stopped{group, 0s});
  job.records.on(moment::Ended{result_of(EndingKind::Succeeded), &group});
  CHECK(states(job) == Names{"RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START", "SUCCEEDED",
                             "SUCCEEDED", "SUCCEEDED"});
  const auto& all = job.heard->records;
  CHECK(attribute<double>(all[0], "duration_ms") == 250);
  CHECK(all[0].find("group_rank")->index() == 0);  // null: not known before the round
  CHECK(attribute<std::int64_t>(all[2], "global_rank") == 4);
  CHECK(inner(all[3]).at("role_rank").at(0) == 5);
  CHECK(inner(all[3]).at("role_world_size").at(0) == 6);
  CHECK(attribute<std::int64_t>(job.last(), "total_run_time") == 90);
  CHECK(attribute<std::string>(job.last(), "role") == "trainer");
}

TEST_CASE("elastic records: each worker's end is told for itself") {
  ElasticJob job(kTorchWorkerScope);
  const auto group =
      workers_of({ExitStatus::exited(3), ExitStatus::signaled(SIGTERM), ExitStatus::exited(0)});
  job.round(0s, group);
  auto result = result_of(EndingKind::WorkersFailed);
  auto stopped = failure_of(1, ExitStatus::signaled(SIGTERM));
  stopped.stopped_by_us = true;
  result.judgement = workers::judge({failure_of(0, ExitStatus::exited(3)), stopped});
  job.records.on(moment::Ended{result, &group});
  const auto& all = job.heard->records;
  CHECK(states(job) == Names{"START", "START", "START", "FAILED", "FAILED", "TERMINATED"});
  CHECK(inner(all[3]).at("exit_code").at(0) == 3);
  CHECK(inner(all[4]).at("exit_code").at(0) == -15);
  const auto system = attribute<std::string>(all[3], "raw_error");
  CHECK(parse_json(system)->at("errorTraits").at("category") == "system_terminated_error");
  CHECK(attribute<std::string>(all[4], "raw_error") == R"({"message": "<NONE>"})");
}

TEST_CASE("elastic records: torch's watchdog is told of between the ranks and the workers") {
  ElasticJob job("torchelastic.*");
  ElasticRecords with_fifo(job.pipeline, trainer(), job.job, true);
  job.heard->records.clear();
  with_fifo.on(moment::RoundReady{second_of_two(), 1s});
  with_fifo.on(moment::Started{second_of_two(), workers_of({ExitStatus::exited(0)}), 3ms});
  with_fifo.on(moment::Stopped{{}, 1ms});
  CHECK(states(job) == Names{"RENDEZVOUS", "ASSIGN_WORKER_RANKS", "watchdog started", "START",
                             "watchdog stopped"});
}

TEST_CASE("elastic records: an expired timer is told as torch's watchdog does") {
  ElasticJob job("torchelastic.*");
  job.heard->records.clear();
  ExpiredTimer timer;
  timer.pid = 4242;
  timer.scope = "train.py#57";
  timer.expiry = WallTime(1500ms);
  timer.signal = SIGKILL;
  job.records.on(TimerExpired{std::make_shared<ExpiredTimer>(timer)});
  CHECK(states(job) == Names{"timer expired"});
  CHECK(
      attribute<std::string>(job.last(), "metadata")
          .ends_with(
              R"("watchdog_event": "timer expired", "worker_pid": "4242", "scope_id": "train.py#57", )"
              R"("expiration_time": "1.5", "signal": "9"})"));
}

TEST_CASE("elastic records: an error file is passed on as it is") {
  ElasticJob job(kTorchWorkerScope);
  const auto group = workers_of({ExitStatus::exited(1)});
  job.round(0s, group);
  const std::string raw = R"({"message": ")" + std::string(10'000, 'x') + "\"}";
  auto failure = failure_of(0, ExitStatus::exited(1));
  failure.error_file = workers::parse_error_file(raw);
  REQUIRE(failure.error_file->understood);
  auto result = result_of(EndingKind::WorkersFailed);
  result.judgement = workers::judge({failure});
  job.records.on(moment::Ended{result, &group});
  CHECK(attribute<std::string>(job.last(), "raw_error") == raw);
}

TEST_CASE("elastic records: metrics of a restart, in torchelastic's order") {
  ElasticJob job("torchelastic", 3);
  job.round(5ms, workers_of({ExitStatus::exited(1)}));
  job.heard->records.clear();
  job.records.on(moment::Failed{{}});
  job.records.on(moment::Restarting{{}});
  job.clock.advance(40ms);
  job.records.on(moment::Stopped{workers_of({ExitStatus::exited(1)}), 40ms});
  job.round(10ms, workers_of({ExitStatus::exited(0)}), 1);
  const auto names = job.names();
  CHECK(names.front() == "LocalElasticAgent._monitor_workers.success");
  CHECK(names[3] == "workers.trainer.failed");
  CHECK(has(names, "LocalElasticAgent._stop_workers.success"));
  CHECK(has(names, "SimpleElasticAgent._restart_workers.success"));
  for (const auto& record : job.heard->records) {
    if (record.name == "SimpleElasticAgent._restart_workers.duration.ms") {
      CHECK(std::get<std::int64_t>(record.value) == 50);
    } else if (record.name == "SimpleElasticAgent._initialize_workers.duration.ms") {
      CHECK(std::get<std::int64_t>(record.value) == 13);
    } else if (record.name == "workers.trainer.remaining_restarts") {
      const bool before = &record < &job.heard->records[4];
      CHECK(std::get<std::int64_t>(record.value) == (before ? 3 : 2));
    }
  }
}

TEST_CASE("elastic records: ended while nodes are waited for is a failed rendezvous") {
  ElasticJob job("*", 1);
  job.records.on(moment::PhaseChanged{Phase::Joining, job.clock.now()});
  job.clock.advance(7s);
  auto result = result_of(EndingKind::Signalled);
  result.ending.signal = SIGTERM;
  job.records.on(moment::Ended{result, nullptr});
  const auto names = job.names();
  CHECK(names.front() == "torchelastic.worker.status.RENDEZVOUS");
  CHECK(attribute<double>(job.heard->records.front(), "duration_ms") == 7000);
  CHECK(attribute<std::string>(job.heard->records.front(), "raw_error").contains("got signal: 15"));
  CHECK(has(names, "SimpleElasticAgent._rendezvous.failure"));
  CHECK(has(names, "SimpleElasticAgent.run.failure"));
  CHECK(names.back() == "torchelastic.worker.status.FAILED");
  CHECK_FALSE(has(names, "SimpleElasticAgent.run.success"));
}

TEST_CASE("elastic records: ended in the middle of a restart, whose start failed") {
  ElasticJob job("torchelastic", 1);
  job.round(0s, workers_of({ExitStatus::exited(1)}));
  job.records.on(moment::Restarting{{}});
  job.records.on(moment::Stopped{workers_of({ExitStatus::exited(1)}), 0s});
  job.records.on(moment::PhaseChanged{Phase::Joining, job.clock.now()});
  job.records.on(moment::RoundReady{second_of_two(1), 0s});
  job.heard->records.clear();
  auto result = result_of(EndingKind::NoStart);
  result.ending.why = "too many open files";
  job.records.on(moment::Ended{result, nullptr});
  const auto names = job.names();
  CHECK(has(names, "LocalElasticAgent._start_workers.failure"));
  CHECK(has(names, "SimpleElasticAgent._restart_workers.failure"));
  CHECK_FALSE(has(names, "SimpleElasticAgent._rendezvous.failure"));
}

TEST_CASE("elastic records: a spare without any worker, and nobody who listens") {
  ElasticJob job("torchelastic.*");
  job.records.on(moment::Ended{result_of(EndingKind::NotNeeded), nullptr});
  CHECK(states(job) == Names{"SUCCEEDED"});
  ElasticJob deaf("somebody else's");
  const auto group = workers_of({});
  deaf.round(0s, group);
  deaf.records.on(moment::Failed{{}});
  deaf.records.on(moment::Ended{result_of(EndingKind::Succeeded), &group});
  CHECK(deaf.heard->records.empty());
}

}  // namespace elastrun::agent
