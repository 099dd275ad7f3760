// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_telemetry.hpp"

#include "core/json.hpp"
#include "support/fake_run.hpp"
#include "telemetry/registry.hpp"
#include "unit/agent/records.hpp"

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <map>
#include <unistd.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using process::ExitStatus;
using EndingKind = Ending::Kind;
using Names = std::vector<std::string>;
using Text = std::string;
using Whole = std::int64_t;
using rendezvous::Cause;

const std::string kTorchAgentScope = "torchelastic.agent",
                  kTorchWorkerScope = "torchelastic.worker";

/// "RENDEZVOUS" of "torchelastic.worker.status.RENDEZVOUS".
Names states(const HeardRecords& job) {
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

/// All that tells what an agent does, and somebody who listens to one scope of it (`*`: to all).
struct ToldRun : test::FakeRun, HeardRecords {
  explicit ToldRun(const std::string& scope, spec::JobSpec spec = {}, bool has_fifo = false)
      : FakeRun(std::move(spec)),
        telemetry(*RunTelemetry::make(*this, pages, trainer(), has_fifo)),
        observers(telemetry->observers()) {
    telemetry->pipeline().route({scope, {}, {}}, heard);
  }
  void on(const Moment& moment) {
    for (auto* one : observers) one->heard(moment);
  }
  void on_joining() { on(moment::PhaseChanged{Phase::Joining, time.now()}); }

  test::FakeClock& clock = time;
  workers::SharedPages pages{job};
  std::unique_ptr<RunTelemetry> telemetry;
  std::vector<Observer*> observers;
};

spec::JobSpec restarts_of(int max_restarts) {
  spec::JobSpec spec;
  spec.max_restarts = max_restarts;
  return spec;
}

struct ElasticJob : ToldRun {
  explicit ElasticJob(const std::string& scope, int max_restarts = 0, bool has_fifo = false)
      : ToldRun(scope, restarts_of(max_restarts), has_fifo) {}
  ElasticJob& round(Duration waited, const std::vector<workers::Worker>& group, int attempt = 0) {
    on_joining();
    clock.advance(waited);
    auto round = second_of_two(attempt);
    round.restarts_left = job.max_restarts - attempt;
    on(moment::RoundReady{round, waited});
    on(moment::Started{second_of_two(attempt), group, 3ms});
    return *this;
  }
};

json::object inner(const telemetry::Record& record) {
  return parse_json(attribute<std::string>(record, "metadata"))->as_object();
}

workers::Judgement one_failure() {
  return workers::judge({failure_of(0, ExitStatus::exited(1))});
}

TEST_CASE("elastic records: who wants each sample hears of workers as often as torchrun looks") {
  ElasticJob job("nothing", 3);
  const auto each = std::make_shared<Heard>();
  auto group = workers_of({ExitStatus::exited(0)});
  group[0].pid = ::getpid();
  job.round(1s, group);
  CHECK(job.clock.armed() == 0);  // nobody wants them: nothing wakes up
  job.telemetry->pipeline().route({.scope = "torchelastic", .each = true}, each);
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
  job.on(moment::Stopped{group, 1s});
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
  job.on(moment::Failed{judgement});
  CHECK(job.heard->records[1].name == "LocalElasticAgent._monitor_workers.duration.ms");
  CHECK(std::get<std::int64_t>(job.heard->records[1].value) == 250);
}

TEST_CASE("elastic records: a job that succeeds is told as torchelastic would") {
  ElasticJob job("torchelastic.*");
  const auto group = workers_of({ExitStatus::exited(0), ExitStatus::exited(0)});
  job.round(250ms, group);
  job.clock.advance(90s);
  job.on(moment::Stopped{group, 0s});
  job.on(moment::Ended{result_of(EndingKind::Succeeded), &group});
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
  job.on(moment::Ended{result, &group});
  const auto& all = job.heard->records;
  CHECK(states(job) == Names{"START", "START", "START", "FAILED", "FAILED", "TERMINATED"});
  CHECK(inner(all[3]).at("exit_code").at(0) == 3);
  CHECK(inner(all[4]).at("exit_code").at(0) == -15);
  const auto system = attribute<std::string>(all[3], "raw_error");
  CHECK(parse_json(system)->at("errorTraits").at("category") == "system_terminated_error");
  CHECK(attribute<std::string>(all[4], "raw_error") == R"({"message": "<NONE>"})");
}

TEST_CASE("elastic records: torch's watchdog is told of between the ranks and the workers") {
  ElasticJob job("torchelastic.*", 0, true);
  job.round(1s, workers_of({ExitStatus::exited(0)})).on(moment::Stopped{{}, 1ms});
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
  job.on(TimerExpired{std::make_shared<ExpiredTimer>(timer)});
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
  job.on(moment::Ended{result, &group});
  CHECK(attribute<std::string>(job.last(), "raw_error") == raw);
}

TEST_CASE("elastic records: metrics of a restart, in torchelastic's order") {
  ElasticJob job("torchelastic", 3);
  job.round(5ms, workers_of({ExitStatus::exited(1)}));
  job.heard->records.clear();
  job.on(moment::Failed{one_failure()});
  job.on(moment::Restarting{{}});
  job.clock.advance(40ms);
  job.on(moment::Stopped{workers_of({ExitStatus::exited(1)}), 40ms});
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
  ElasticJob job("torchelastic*", 1);
  job.on_joining();
  job.clock.advance(7s);
  auto result = result_of(EndingKind::Signalled);
  result.ending.signal = SIGTERM;
  job.on(moment::Ended{result, nullptr});
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
  job.on(moment::Restarting{{}});
  job.on(moment::Stopped{workers_of({ExitStatus::exited(1)}), 0s});
  job.on_joining();
  job.on(moment::RoundReady{second_of_two(1), 0s});
  job.heard->records.clear();
  auto result = result_of(EndingKind::NoStart);
  result.ending.why = "too many open files";
  job.on(moment::Ended{result, nullptr});
  const auto names = job.names();
  CHECK(has(names, "LocalElasticAgent._start_workers.failure"));
  CHECK(has(names, "SimpleElasticAgent._restart_workers.failure"));
  CHECK_FALSE(has(names, "SimpleElasticAgent._rendezvous.failure"));
}

TEST_CASE("elastic records: a spare without any worker, and nobody who listens") {
  ElasticJob job("torchelastic.*");
  job.on(moment::Ended{result_of(EndingKind::NotNeeded), nullptr});
  CHECK(states(job) == Names{"SUCCEEDED"});
  ElasticJob deaf("somebody else's");
  const auto group = workers_of({});
  deaf.round(0s, group);
  deaf.on(moment::Failed{one_failure()});
  deaf.on(moment::Ended{result_of(EndingKind::Succeeded), &group});
  CHECK(deaf.heard->records.empty());
}

TEST_CASE("job records: what the job is, under a very long name too") {
  spec::JobSpec spec;
  spec.run_id = std::string(50'000, 'r');
  spec.script = "/a/train.py";
  spec.min_nodes = 2;
  spec.max_nodes = 4;
  spec.nproc_per_node = 8;
  ToldRun job("elastrun.agent", spec);
  job.telemetry->begin();
  CHECK(job.names() == Names{"job.started"});
  CHECK(attribute<Text>(job.last(), "run_id") == spec.run_id);
  CHECK(attribute<Whole>(job.last(), "pid") == ::getpid());
  CHECK(attribute<Whole>(job.last(), "min_nodes") == 2);
  CHECK(attribute<Whole>(job.last(), "max_nodes") == 4);
  CHECK(attribute<Whole>(job.last(), "nproc_per_node") == 8);
}

TEST_CASE("job records: each phase has its name") {
  ToldRun job("elastrun.agent");
  Names phases;
  for (int i = 0; i <= static_cast<int>(Phase::Ended); ++i) {
    job.on(moment::PhaseChanged{static_cast<Phase>(i), job.clock.now()});
    phases.push_back(attribute<Text>(job.last(), "phase"));
  }
  CHECK(phases == Names{"joining", "starting", "running", "settling", "stopping", "waiting",
                        "barrier", "ended"});
}

TEST_CASE("job records: a group without workers has a start and an end all the same") {
  ToldRun job("elastrun.agent");
  job.on(moment::Started{{}, {}, 0s});
  job.on(moment::Stopped{{}, 0s});
  CHECK(job.names() == Names{"group.started", "group.gone"});
  CHECK(attribute<Whole>(job.heard->records[0], "workers") == 0);
}

TEST_CASE("job records: nobody who listens to the agent gets nothing of it") {
  ToldRun job("training");
  job.telemetry->begin();
  job.on(moment::PhaseChanged{Phase::Running, {}});
  job.on(moment::Progress{"p"});
  job.on(moment::Started{{}, workers_of({ExitStatus::exited(0)}), 0s});
  CHECK(job.heard->records.empty());
}

struct Nodes : ToldRun {
  Nodes() : ToldRun("nothing", shown()) {}
  static spec::JobSpec shown() {
    spec::JobSpec spec;
    spec.http.emplace();
    return spec;
  }
  void round(std::vector<std::string> addresses, int group_rank = 0) {
    rendezvous::Round round;
    round.group_rank = group_rank;
    for (auto& address : addresses) {
      rendezvous::Node node;
      node.id = address + "_17_0";
      node.address = std::move(address);
      round.members.push_back(std::move(node));
    }
    on(moment::RoundReady{round, {}});
  }
  void restart(Cause::Kind kind, const std::string& node) {
    rendezvous::Restart order;
    order.cause.kind = kind;
    order.cause.node = node + "_17_0";
    on(moment::Restarting{order});
  }
  /// "name|label|label" -> value
  std::map<std::string, double> seen() {
    std::map<std::string, double> found;
    auto& registry = telemetry->metrics()->host().registry();
    for (const auto& point : registry.collect("elastrun.node.**").points) {
      auto name = point.spec->name.substr(std::string_view("elastrun.node.").size());
      for (const auto& [key, value] : point.labels) name += "|" + std::get<std::string>(value);
      found[name] = std::get<double>(point.value);
    }
    return found;
  }
};

TEST_CASE("node series: which nodes are in the world, and which have interrupted it") {
  Nodes nodes;
  CHECK(nodes.seen().empty());
  nodes.round({"a", "b"});
  CHECK(nodes.seen() == std::map<std::string, double>{{"up|a", 1}, {"up|b", 1}});
  nodes.restart(Cause::Kind::WorkerFailed, "a");
  nodes.restart(Cause::Kind::WorkerFailed, "a");
  nodes.restart(Cause::Kind::NodeLost, "b");
  nodes.restart(Cause::Kind::NodeJoined, "c");       // interrupts nothing unexpectedly
  nodes.restart(Cause::Kind::NodeLost, "stranger");  // never in the world
  const std::map<std::string, double> expected{{"up|a", 1},
                                               {"up|b", 0},
                                               {"interruptions|a|worker_failed", 2},
                                               {"interruptions|b|node_lost", 1}};
  CHECK(nodes.seen() == expected);
  nodes.round({"a", "c"});
  CHECK(nodes.seen().at("up|b") == 0);
  CHECK(nodes.seen().at("up|c") == 1);
}

TEST_CASE("node series: only the node of rank 0 tells") {
  Nodes nodes;
  nodes.round({"a", "b"}, 1);
  nodes.restart(Cause::Kind::WorkerFailed, "a");
  CHECK(nodes.seen().empty());
}

}  // namespace
}  // namespace elastrun::agent
