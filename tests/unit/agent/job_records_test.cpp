// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/job_records.hpp"

#include "unit/agent/records.hpp"

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

TEST_CASE("job records: a group without workers has a start and an end all the same") {
  Job job;
  job.records.on(moment::Started{{}, {}, 0s});
  job.records.on(moment::Stopped{{}, 0s});
  CHECK(job.names() == Names{"group.started", "group.gone"});
  CHECK(attribute<Whole>(job.heard->records[0], "workers") == 0);
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
