// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/worker_records.hpp"

#include "core/text.hpp"
#include "unit/agent/records.hpp"
#include "worker/summary.hpp"

#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <map>
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
    records.on(moment::RoundReady{round, {}});
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
  const auto wall = job.clock.wall() - 250ms;  // under way on a busy machine
  job.heard_from(0, workers::WorkerEvent{"late", {}, to_seconds(wall.time_since_epoch())});
  CHECK(to_seconds(job.clock.wall() - job.last().stamp.wall) == doctest::Approx(0.25));
  CHECK(to_seconds(job.clock.now() - job.last().stamp.mono) == doctest::Approx(0.25));
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

TEST_CASE("worker records: samples come one by one to those who want each, else summed up") {
  TalkingJob job("h");
  const auto each = std::make_shared<Heard>();
  job.pipeline.route({.scope = "g", .each = true}, each);
  job.pipeline.route({.scope = "g"}, job.heard);
  auto meaning = std::make_shared<telemetry::Meaning>();
  meaning->labels = {{"layer", "3"}};
  meaning->unit = "s";
  workers::SamplesTold told{{{"g", "loss"}, {"g", "norm", meaning}, {"x", "y"}}, {}};
  const double now = to_seconds(job.clock.wall().time_since_epoch());
  told.samples = {{0, now - 0.5, 2.5, 7}, {1, now - 0.25, 1}, {2, now, 1}, {0, now, 3}};
  told.suppressed = {{"g", 40}};
  job.heard_from(1, told);
  CHECK(job.heard->records.empty());
  REQUIRE(each->records.size() == 4);
  const auto& first = each->records[0];
  CHECK(std::get<double>(first.value) == 2.5);
  CHECK(attribute<Whole>(first, "step") == 7);
  CHECK(to_seconds(job.clock.wall() - first.stamp.wall) == doctest::Approx(0.5));
  CHECK(to_seconds(job.clock.now() - first.stamp.mono) == doctest::Approx(0.5));
  job.check_labels(first, 1);
  CHECK(each->records[1].meaning->labels == meaning->labels);
  CHECK(each->records[1].meaning->unit == "s");
  CHECK(each->records[2].name == "loss");
  CHECK(each->records[3].name == "samples.suppressed");
  CHECK(std::get<Whole>(each->records[3].value) == 40);
  workers::MetricSample sum{"loss", 3, "g"};
  sum.batch = {2, 5.5, 2.5, 3};
  sum.each = true;
  job.heard_from(1, sum);
  CHECK(each->records.size() == 4);
  REQUIRE(job.heard->records.size() == 2);
  CHECK(job.heard->records[0].summary->count == 2);
  CHECK(job.heard->records[1].kind == RecordKind::Window);
}

TEST_CASE("worker records: a histogram is a window with quantiles, and its buckets for pulls") {
  TalkingJob job("g");
  telemetry::Sketch sketch;
  for (int i = 1; i <= 100; ++i) sketch.add(i);
  workers::MetricSample sample{"step", 100, "g"};
  sample.batch = {100, 5050, 1, 100, std::make_shared<const telemetry::Sketch>(sketch)};
  job.heard_from(0, sample);
  REQUIRE(job.heard->records.size() == 2);
  CHECK(job.heard->records[0].detail == telemetry::Detail::Summed);
  CHECK(job.heard->records[0].summary->sketch->count() == 100);
  const auto& window = job.heard->records[1];
  CHECK(window.detail == telemetry::Detail::Whole);
  const auto& aggregates = window.window->aggregates;
  const auto p95 = std::ranges::find(aggregates, "p95", &telemetry::Attribute::first);
  REQUIRE(p95 != aggregates.end());
  CHECK(std::get<double>(p95->second) == doctest::Approx(95).epsilon(0.011));
}

TEST_CASE("worker records: the end of a span is a span, with what it was about") {
  TalkingJob job;
  job.heard_from(1, workers::WorkerEvent{"epoch", {{"span.phase", "start"}, {"span.id", "a"}}});
  CHECK(job.heard->records.size() == 1);
  job.heard_from(
      1,
      workers::WorkerEvent{
          "epoch",
          {{"number", Whole{3}}, {"span.phase", "stop"}, {"span.id", "a"}, {"span.seconds", 1.5}}});
  REQUIRE(job.heard->records.size() == 3);
  CHECK(job.last().kind == RecordKind::SpanEnd);
  CHECK(job.last().scope == "worker");
  CHECK(attribute<Whole>(job.last(), "duration_ns") == 1'500'000'000);
  CHECK(attribute<Whole>(job.last(), "number") == 3);
  CHECK(job.last().find("span.phase") == nullptr);
  job.check_labels(job.last(), 1);
  for (const double odd : {-1.0, 1e300, std::nan("")}) {
    job.heard_from(1, workers::WorkerEvent{"e", {{"span.phase", "stop"}, {"span.seconds", odd}}});
    CHECK(job.last().kind == RecordKind::Event);
  }
}

TEST_CASE("worker records: unit and help of a Stat go with its series") {
  TalkingJob job;
  job.heard_from(1, workers::WorkerEvent{"torch.monitor.Stat",
                                         {{"a.mean", 3.0}, {"a.count", 2.0}, {"stat.unit", "s"}}});
  CHECK(job.heard->records[0].meaning->unit == "s");
  CHECK(job.heard->records[1].meaning == nullptr);
}

TEST_CASE("worker records: attributes of an event that are called as ours are kept, renamed") {
  TalkingJob job;
  job.heard_from(1, workers::WorkerEvent{"e",
                                         {{"rank", 7.0},
                                          {"role", std::string("actor")},
                                          {"exported_role", std::string("critic")},
                                          {"loss", 0.5}}});
  job.check_labels(job.last(), 1);
  CHECK(attribute<double>(job.last(), "exported_rank") == 7);
  CHECK(attribute<std::string>(job.last(), "exported_exported_role") == "actor");
  CHECK(attribute<std::string>(job.last(), "exported_role") == "critic");
  CHECK(attribute<double>(job.last(), "loss") == 0.5);
  CHECK(job.last().attributes.size() == 8);
}

TEST_CASE("worker records: a worker can learn how much of what it says is not taken") {
  TalkingJob job;
  std::map<int, std::uint64_t> told;
  job.records.on_refused([&](int local_rank, std::uint64_t count) { told[local_rank] = count; });
  for (int i = 0; i < 1005; ++i) job.heard_from(3, workers::WorkerEvent{"flood", {}});
  job.heard_from(2, workers::MetricSample{"x", 1, "elastrun.agent"});
  CHECK(told == std::map<int, std::uint64_t>{{1, 5}, {0, 1}});
  workers::Worker worker;
  worker.local_rank = 1;
  job.records.refused(worker, 2);
  CHECK(told[1] == 7);
}

TEST_CASE("worker records: what a counter has come to is told, for each rank and over restarts") {
  TalkingJob job;
  job.heard_from(0, workers::MetricSample{"tokens", 32, "g", {}, true});
  CHECK(std::get<double>(job.last().value) == 32);
  CHECK(attribute<bool>(job.last(), "total"));
  job.check_labels(job.last(), 0);
  rendezvous::Round again;
  again.attempt = 2;
  job.records.on(moment::RoundReady{again, {}});
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
  job.heard_from(1, workers::WorkerEvent{"e", {{"severity", "WARN"}}});
  CHECK(job.last().severity == telemetry::Severity::Warn);
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
  CHECK(names.size() == Intake::kMostSeries + 1);
  CHECK(job.records.statistics().overflowed == 700);
}

TEST_CASE("worker records: a worker does not say who it is") {
  TalkingJob job;
  job.heard_from(1, workers::WorkerEvent{"e", {{"rank", Whole{INT64_MAX}}, {"number", Whole{4}}}});
  CHECK(job.last().attributes.size() == 6);
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
