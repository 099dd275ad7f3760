// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/job_records.hpp"

#include "unit/agent/records.hpp"

#include <csignal>
#include <unistd.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using process::ExitStatus;
using Names = std::vector<std::string>;
using Text = std::string;
using Whole = std::int64_t;

struct Job : Listening {
  spec::JobSpec spec;
  JobRecords records{pipeline, spec};
  explicit Job(const std::string& scope = "elastrun.agent") : Listening(scope) {}
};

bool carries(const telemetry::Record& record, std::string_view name) {
  return record.find(name) != nullptr;
}

}  // namespace

TEST_CASE("job records: what the job is, under a very long name too") {
  Job job;
  auto& spec = job.spec;
  spec.run_id = std::string(50'000, 'r');
  spec.script = "/a/train.py";
  spec.min_nodes = 2;
  spec.max_nodes = 4;
  spec.nproc_per_node = 8;
  job.records.begin({});
  CHECK(job.names() == Names{"job.started"});
  CHECK(attribute<Text>(job.last(), "run_id") == spec.run_id);
  CHECK(attribute<Whole>(job.last(), "pid") == ::getpid());
  CHECK(attribute<Whole>(job.last(), "min_nodes") == 2);
  CHECK(attribute<Whole>(job.last(), "max_nodes") == 4);
  CHECK(attribute<Whole>(job.last(), "nproc_per_node") == 8);
}

TEST_CASE("job records: each phase has its name") {
  Job job;
  Names phases;
  for (int i = 0; i <= static_cast<int>(Phase::Ended); ++i) {
    job.records.on(moment::PhaseChanged{static_cast<Phase>(i), job.clock.now()});
    phases.push_back(attribute<Text>(job.last(), "phase"));
  }
  CHECK(phases == Names{"joining", "starting", "running", "settling", "stopping", "waiting",
                        "barrier", "ended"});
}

TEST_CASE("job records: a worker's end tells exit codes from signals") {
  Job job;
  auto group =
      workers_of({ExitStatus::exited(3), ExitStatus::signaled(SIGKILL), ExitStatus::exited(0)});
  group[1].stopped_by_us = true;
  group[2].exit.reset();
  group[2].abandoned = true;
  job.records.on(moment::Stopped{group, 1500ms});
  const auto& all = job.heard->records;
  CHECK(job.names() == Names{"worker.ended", "worker.ended", "worker.ended", "group.gone"});
  CHECK(attribute<Whole>(all[0], "exit_code") == 3);
  CHECK_FALSE(carries(all[0], "signal"));
  CHECK_FALSE(carries(all[0], "stopped_by_us"));
  CHECK(attribute<double>(all[0], "ended") == 50);
  CHECK(attribute<Text>(all[1], "signal") == "SIGKILL");
  CHECK_FALSE(carries(all[1], "exit_code"));
  CHECK(attribute<bool>(all[1], "stopped_by_us"));
  CHECK(attribute<bool>(all[2], "abandoned"));
  CHECK_FALSE(carries(all[2], "ended"));
  CHECK(attribute<double>(all[3], "took_s") == 1.5);
}

TEST_CASE("job records: a group without workers has a start and an end all the same") {
  Job job;
  job.records.on(moment::Started{{}, {}, 0s});
  job.records.on(moment::Stopped{{}, 0s});
  CHECK(job.names() == Names{"group.started", "group.gone"});
  CHECK(attribute<Whole>(job.heard->records[0], "workers") == 0);
}

TEST_CASE("job records: a failure and the restart that follows name the culprit") {
  Job job;
  job.records.on(moment::Failed{workers::judge({failure_of(1, ExitStatus::exited(3))})});
  CHECK(attribute<Whole>(job.last(), "rank") == 5);
  CHECK(attribute<Text>(job.last(), "what") == "ended with exit code 3");
  CHECK_FALSE(carries(job.last(), "exit_s"));
  rendezvous::Restart order;
  order.cause.text = "rank 5 ended with exit code 3";
  order.cause.node = "node1";
  order.cause.rank = 5;
  order.attempt_spent = true;
  order.restarts_left = 2;
  job.records.on(moment::Restarting{order});
  CHECK(attribute<Text>(job.last(), "node") == "node1");
  CHECK(attribute<Whole>(job.last(), "rank") == 5);
  CHECK(attribute<bool>(job.last(), "attempt_spent"));
  job.records.on(moment::Restarting{{}});  // nobody's fault
  CHECK_FALSE(carries(job.last(), "node"));
  CHECK_FALSE(carries(job.last(), "rank"));
}

TEST_CASE("job records: a round and the end of the job") {
  Job job;
  rendezvous::Round round;
  round.number = 7;
  round.attempt = 2;
  round.members.resize(3);
  round.master_addr = "10.0.0.1";
  round.master_port = 29400;
  job.records.on(moment::RoundReady{round, 2500ms});
  CHECK(attribute<Whole>(job.last(), "group_world_size") == 3);
  CHECK(attribute<Whole>(job.last(), "master_port") == 29400);
  CHECK(attribute<double>(job.last(), "waited_s") == 2.5);
  JobResult result;
  result.ending.kind = Ending::Kind::NoStart;
  result.ending.why = "no room";
  result.restarts = 2;
  job.records.on(moment::Ended{result, nullptr});
  CHECK(attribute<Text>(job.last(), "ending") == "not_started");
  CHECK_FALSE(attribute<bool>(job.last(), "succeeded"));
  CHECK(attribute<Text>(job.last(), "verdict") == "the workers could not be started: no room");
}

TEST_CASE("job records: the goodput adds up, by the names of the buckets") {
  Job job;
  goodput::Ledger ledger(job.clock.now());
  ledger.enter(goodput::Bucket::Running, job.clock.now() + 1s);
  job.records.summary(ledger.summary(job.clock.now() + 4s));
  double sum = 0;
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    const auto name = bucket_name(static_cast<goodput::Bucket>(i));
    sum += attribute<double>(job.last(), Text(name) + "_s");
  }
  CHECK(sum == 4);
  CHECK(attribute<double>(job.last(), "elapsed_s") == 4);
  CHECK(attribute<double>(job.last(), "goodput_at_most") == 0.75);
}

TEST_CASE("job records: nobody who listens to the agent gets nothing of it") {
  Job job("training");
  job.records.begin({});
  job.records.on(moment::PhaseChanged{Phase::Running, {}});
  job.records.on(moment::Progress{"p"});
  job.records.on(moment::Started{{}, workers_of({ExitStatus::exited(0)}), 0s});
  CHECK(job.heard->records.empty());
}

}  // namespace elastrun::agent
