// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/worker_records.hpp"

#include "unit/agent/records.hpp"

#include <cstdint>
#include <fmt/format.h>
#include <set>

namespace elastrun::agent {
namespace {

using Whole = std::int64_t;
using RecordKind = telemetry::Record::Kind;
using workers::Message;

struct TalkingJob : Listening {
  spec::JobSpec spec;
  WorkerRecords records{pipeline, spec};
  explicit TalkingJob(const std::string& scope = "*") : Listening(scope) {
    spec.role = "trainer";
    rendezvous::Round round;
    round.attempt = 2;
    records.round_ready(round, {});
  }
  void heard_from(int rank, Message message) {
    workers::Worker worker;
    worker.rank = rank;
    worker.local_rank = rank % 2;
    records.heard(worker, std::move(message));
  }
  void check_labels(const telemetry::Record& record, int rank) const {
    CHECK(attribute<Whole>(record, "rank") == rank);
    CHECK(attribute<Whole>(record, "local_rank") == rank % 2);
    CHECK(attribute<std::string>(record, "role") == "trainer");
    CHECK(attribute<Whole>(record, "attempt") == 2);
  }
};

}  // namespace

TEST_CASE("worker records: what workers say keeps its group and gets its labels") {
  TalkingJob job;
  job.heard_from(0, workers::StepDone{12});
  CHECK(job.last().kind == RecordKind::Sample);
  CHECK(std::get<Whole>(job.last().value) == 12);
  job.heard_from(1, workers::StepDone{13});  // rank 0 counts the steps
  CHECK(job.heard->records.size() == 1);
  job.heard_from(3, workers::CheckpointDone{12});
  CHECK(job.last().scope == "elastrun.worker");
  CHECK(attribute<Whole>(job.last(), "step") == 12);
  job.check_labels(job.last(), 3);
  job.heard_from(1, workers::PhaseEntered{"eval"});
  CHECK(attribute<std::string>(job.last(), "phase") == "eval");
  job.check_labels(job.last(), 1);
  job.heard_from(2, workers::MetricSample{"loss", 0.25, "training"});
  CHECK(job.last().scope == "training");
  CHECK(job.last().kind == RecordKind::Sample);
  CHECK(std::get<double>(job.last().value) == 0.25);
  job.check_labels(job.last(), 2);
  job.heard_from(2, workers::WorkerEvent{"epoch", {{"number", Whole{4}}}});
  CHECK(job.last().scope == "worker");
  CHECK(attribute<Whole>(job.last(), "number") == 4);
  CHECK(job.last().stamp.wall == job.clock.wall());
  job.check_labels(job.last(), 2);
}

TEST_CASE("worker records: an event that tells when it happened keeps that time") {
  TalkingJob job;
  job.heard_from(0, workers::WorkerEvent{"late", {}, 12.5});
  CHECK(job.last().stamp.wall == WallTime(std::chrono::milliseconds(12'500)));
  CHECK(job.last().stamp.mono == job.clock.now());
}

TEST_CASE("worker records: samples that a worker has summed up are the last one and a window") {
  TalkingJob job;
  workers::MetricSample metric{"loss", 3, "g"};
  metric.batch = {4, 10, 1, 5};
  metric.step = 109;
  job.heard_from(1, metric);
  REQUIRE(job.heard->records.size() == 2);
  CHECK(std::get<double>(job.heard->records[0].value) == 3);
  for (const auto& record : job.heard->records) CHECK(attribute<Whole>(record, "step") == 109);
  const auto& window = job.heard->records[1];
  CHECK(window.kind == RecordKind::Window);
  job.check_labels(window, 1);
  REQUIRE(window.window != nullptr);
  CHECK(window.window->count == 4);
  CHECK(window.window->aggregates[1] == telemetry::Attribute{"mean", 2.5});
}

TEST_CASE("worker records: what a counter has come to is told, for each rank and over restarts") {
  TalkingJob job;
  job.heard_from(0, workers::MetricSample{"tokens", 32, "g", {}, true});
  CHECK(std::get<double>(job.last().value) == 32);
  CHECK(attribute<bool>(job.last(), "total"));
  job.check_labels(job.last(), 0);
  rendezvous::Round again;
  again.attempt = 2;
  job.records.round_ready(again, {});
  job.heard_from(0, workers::MetricSample{"tokens", 0.5, "g", {}, true});
  CHECK(std::get<double>(job.last().value) == 32.5);
  job.heard_from(1, workers::MetricSample{"tokens", 1, "g", {}, true});
  CHECK(std::get<double>(job.last().value) == 1);
}

TEST_CASE("worker records: a window of torch.monitor is a series for each aggregation, too") {
  TalkingJob job;
  job.heard_from(1,
                 workers::WorkerEvent{"torch.monitor.Stat",
                                      {{"a.sum", 3.0}, {"a.count", 2.0}, {"a.histogram", "1:2"}}});
  CHECK(job.names() == std::vector<std::string>{"a.sum", "a.count", "torch.monitor.Stat"});
  CHECK(job.heard->records[0].scope == "torch.monitor");
  CHECK(job.heard->records[0].kind == RecordKind::Sample);
  CHECK(std::get<double>(job.heard->records[0].value) == 3);
  job.check_labels(job.heard->records[0], 1);
  CHECK(job.last().kind == RecordKind::Event);
}

TEST_CASE("worker records: the severity of an event is the record's") {
  TalkingJob job;
  job.heard_from(1, workers::WorkerEvent{"e", {{"severity", "error"}, {"a", true}}});
  CHECK(job.last().severity == telemetry::Severity::Error);
  CHECK(job.last().find("severity") == nullptr);
  job.heard_from(1, workers::WorkerEvent{"e", {{"severity", "loud"}}});
  CHECK(job.last().severity == telemetry::Severity::Info);
  CHECK(*job.last().find("severity") == telemetry::Value("loud"));
}

TEST_CASE("worker records: a flood is limited and counted") {
  TalkingJob job;
  for (int i = 0; i < 1500; ++i) job.heard_from(0, workers::WorkerEvent{"e", {}});
  CHECK(job.heard->records.size() == 1000);
  CHECK(job.records.statistics().suppressed == 500);
}

TEST_CASE("worker records: windows of torch.monitor make no names without end") {
  TalkingJob job;
  std::set<std::string> names;
  for (int i = 0; i < 900; ++i) {
    workers::WorkerEvent event{"torch.monitor.Stat", {}};
    for (int j = 0; j < 3; ++j) event.attributes.emplace_back(fmt::format("{}.{}", i, j), 1.0);
    job.heard_from(0, std::move(event));
  }
  for (const auto& record : job.heard->records) {
    if (record.kind == RecordKind::Sample) names.insert(record.name);
  }
  CHECK(names.size() == workers::Intake::kMostSeries + 1);
  CHECK(job.records.statistics().overflowed == 700);
}

TEST_CASE("worker records: a worker does not say who it is") {
  TalkingJob job;
  job.heard_from(1, workers::WorkerEvent{"e", {{"rank", Whole{INT64_MAX}}, {"number", Whole{4}}}});
  CHECK(job.last().attributes.size() == 5);
  job.check_labels(job.last(), 1);
}

TEST_CASE("worker records: nobody who listens to something else gets any of it") {
  TalkingJob job("elsewhere");
  job.heard_from(0, workers::StepDone{1});
  job.heard_from(0, workers::MetricSample{"loss", 1, "training"});
  job.heard_from(0, workers::WorkerEvent{"torch.monitor.Stat", {{"a.sum", 3.0}}});
  CHECK(job.heard->records.empty());
}

}  // namespace elastrun::agent
