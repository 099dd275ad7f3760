// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/worker_records.hpp"

#include "core/text.hpp"
#include "unit/agent/records.hpp"
#include "worker/summary.hpp"

#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>
#include <set>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using Whole = std::int64_t;
using RecordKind = telemetry::Record::Kind;
using workers::Message;
using namespace workers;

struct TalkingJob : Listening {
  spec::JobSpec spec = with_library();
  workers::SharedPages pages{spec};
  WorkerRecords records{pipeline, spec, pages};
  explicit TalkingJob(const std::string& scope = "*") : Listening(scope) {
    rendezvous::Round round;
    round.attempt = 2;
    records.on(moment::RoundReady{round, {}});
  }
  static spec::JobSpec with_library() {
    spec::JobSpec spec;
    spec.role = "trainer";
    spec.worker_lib = true;
    return spec;
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

std::shared_ptr<telemetry::Summary> summed(std::initializer_list<double> values) {
  auto all = std::make_shared<telemetry::Summary>();
  for (const double value : values) all->add(value);
  return all;
}

TEST_CASE("worker records: samples that a worker has summed up are the last one and a window") {
  TalkingJob job;
  workers::MetricSample metric{"loss", 3, "g"};
  metric.batch = summed({5, 1, 1, 3});
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
  sum.batch = summed({2.5, 3});
  sum.each = true;
  job.heard_from(1, sum);
  CHECK(each->records.size() == 4);
  REQUIRE(job.heard->records.size() == 2);
  CHECK(job.heard->records[0].summary->count == 2);
  CHECK(job.heard->records[1].kind == RecordKind::Window);
}

TEST_CASE("worker records: a histogram is a window with quantiles, and its buckets for pulls") {
  TalkingJob job("g");
  workers::MetricSample sample{"step", 100, "g"};
  sample.batch = summed({});
  sample.batch->sketch.emplace();
  for (int i = 1; i <= 100; ++i) sample.batch->add(i);
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
  const std::vector<std::string> paths{job.pages.make(0), job.pages.make(1)};
  const auto told = [&paths](std::size_t local_rank) {
    std::ifstream page(paths[local_rank], std::ios::binary);
    std::uint64_t count = 0;
    page.seekg(88).read(reinterpret_cast<char*>(&count), sizeof count);
    return count;
  };
  for (int i = 0; i < 1005; ++i) job.heard_from(3, workers::WorkerEvent{"flood", {}});
  job.heard_from(2, workers::MetricSample{"x", 1, "elastrun.agent"});
  CHECK(told(1) == 5);
  CHECK(told(0) == 1);
  workers::Worker worker;
  worker.local_rank = 1;
  job.records.refused(worker, 2);
  CHECK(told(1) == 7);
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

constexpr TimePoint kStart{std::chrono::hours(1)};

Message sample(std::string name) {
  return MetricSample{std::move(name), 1, "g"};
}
Message event(std::string name) {
  return WorkerEvent{std::move(name), {}};
}

TEST_CASE("intake: of a flood some pass, and the next that passes tells how many did not") {
  TokenBucket bucket({.rate = 10, .burst = 3});
  TimePoint now{};
  for (int i = 0; i < 3; ++i) CHECK(bucket.take(now) == 0);
  for (int i = 0; i < 5; ++i) CHECK_FALSE(bucket.take(now));
  now += std::chrono::milliseconds(100);
  CHECK(bucket.take(now) == 5);
  CHECK_FALSE(bucket.take(now));
  now += std::chrono::hours(1);
  CHECK(bucket.take(now) == 1);
  for (int i = 0; i < 2; ++i) CHECK(bucket.take(now) == 0);
  CHECK_FALSE(bucket.take(now));
}

TEST_CASE("intake: 20,000 samples a second for ten seconds all pass") {
  Intake intake;
  int passed = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto message = sample("loss");
    passed += intake.admit(0, message, kStart + std::chrono::microseconds(50) * i);
  }
  CHECK(passed == 200'000);
  CHECK(intake.take_remark().empty());
}

TEST_CASE("intake: a flood of samples of one rank is limited, said once, and others pass") {
  Intake intake;
  int passed = 0;
  for (int i = 0; i < 150'000; ++i) {
    auto message = sample("loss");
    passed += intake.admit(3, message, kStart);
  }
  CHECK(passed == 100'000);
  CHECK(intake.statistics().suppressed == 50'000);
  CHECK(intake.take_remark().find("Rank 3 reports more than 50000 metrics a second") == 0);
  CHECK(intake.take_remark().empty());
  auto other = sample("loss");
  CHECK(intake.admit(4, other, kStart));
  auto later = sample("loss");
  CHECK(intake.admit(3, later, kStart + std::chrono::milliseconds(1)));
  Message step = StepDone{1};
  CHECK(intake.admit(3, step, kStart));
}

TEST_CASE("intake: floods of steps, phases and checkpoints are limited, each said once") {
  Intake intake;
  const auto passed = [&](const Message& message, int count) {
    int taken = 0;
    for (int i = 0; i < count; ++i) {
      auto copy = message;
      taken += intake.admit(1, copy, kStart);
    }
    return taken;
  };
  CHECK(passed(PhaseEntered{"eval"}, 1'500) == 1'000);
  CHECK(intake.take_remark().find("Rank 1 reports more than 100 phases a second") == 0);
  CHECK(passed(CheckpointDone{7}, 1'500) == 1'000);
  CHECK(intake.take_remark().find("Rank 1 reports more than 100 checkpoints a second") == 0);
  CHECK(passed(StepDone{7}, 21'000) == 20'000);
  CHECK(intake.take_remark().find("Rank 1 reports more than 2000 steps a second") == 0);
  CHECK(intake.statistics().suppressed == 2'000);
  Message other = CheckpointDone{7};
  CHECK(intake.admit(2, other, kStart));
  CHECK(intake.admit(1, other, kStart + std::chrono::milliseconds(11)));
  CHECK_FALSE(intake.admit(1, other, kStart + std::chrono::milliseconds(11)));
  CHECK(intake.take_remark().empty());
}

TEST_CASE("intake: the groups of the agent are not for workers, and no group is theirs") {
  Intake intake;
  for (const char* group : {"elastrun", "elastrun.agent"}) {
    Message message = MetricSample{"elastrun.restart.count", 1, group};
    CHECK_FALSE(intake.admit(4, message, kStart));
  }
  CHECK(intake.statistics().refused == 2);
  CHECK(intake.take_remark() ==
        "Rank 4 reports metric 'elastrun.restart.count' of the group 'elastrun', which is the "
        "agent's: such ones are refused, and counted");
  Message message = MetricSample{"system.cpu.utilization", 1, ""};
  CHECK(intake.admit(4, message, kStart));
  CHECK(std::get<MetricSample>(message).group == "worker");
  Message near = MetricSample{"loss", 1, "elastrunner"};
  CHECK(intake.admit(4, near, kStart));
}

TEST_CASE("intake: entries of a recorder beyond the limit are lost, and said to be") {
  Intake intake;
  GoodputEntries said;
  said.entries.resize(25'000);
  Message message = said;
  CHECK(intake.admit(0, message, kStart));
  CHECK(std::get<GoodputEntries>(message).entries.size() == 20'000);
  CHECK(std::get<GoodputEntries>(message).lost == 5'000);
  CHECK(intake.statistics().suppressed == 5'000);
  CHECK(intake.take_remark().find("Rank 0 records more than 2000 entries about goodput") == 0);
}

TEST_CASE("intake: entries that could not be read are counted, and said once") {
  Intake intake;
  Message message =
      GoodputEntries{.job = "", .entries = {}, .lost = 3, .refused = 2, .refusal = "it is odd"};
  CHECK(intake.admit(1, message, kStart));
  CHECK(intake.statistics().refused == 2);
  CHECK(intake.take_remark() ==
        "Rank 1: an entry about goodput is refused, and counts as lost: it is odd");
  CHECK(intake.admit(1, message, kStart));
  CHECK(intake.take_remark().empty());
}

TEST_CASE("intake: names of series without end become one") {
  Intake intake;
  for (int i = 0; i < 5000; ++i) {
    auto message = sample("n" + std::to_string(i));
    REQUIRE(intake.admit(0, message, kStart));
    const auto& passed = std::get<MetricSample>(message);
    CHECK(passed.name == (i < 2000 ? "n" + std::to_string(i) : "otel.metric.overflow"));
    CHECK(passed.group == (i < 2000 ? "g" : "worker"));
  }
  CHECK(intake.statistics().overflowed == 3000);
  CHECK(intake.take_remark().find("metric 'n2000'") != std::string::npos);
  auto known = sample("n7");
  CHECK(intake.admit(1, known, kStart));
  CHECK(std::get<MetricSample>(known).name == "n7");
}

TEST_CASE("intake: sets of labels are series, of which there may be so many") {
  Intake intake;
  for (int i = 0; i < 3000; ++i) {
    auto meaning = std::make_shared<telemetry::Meaning>();
    meaning->labels = {{"i", std::to_string(i)}};
    MetricSample one{"a", 1, "g"};
    one.meaning = meaning;
    Message message = one;
    REQUIRE(intake.admit(0, message, kStart));
    const auto& told = std::get<MetricSample>(message);
    CHECK((told.name == "a") == (i < 2000));
    CHECK((told.meaning == nullptr) == (i >= 2000));
  }
  CHECK(intake.statistics().overflowed == 1000);
}

TEST_CASE("intake: samples that are told one by one have a budget; the others are counted") {
  Intake intake;
  SamplesTold all{{{"g", "a"}, {"elastrun.x", "a"}, {"", "b"}}, {}};
  for (int i = 0; i < 6000; ++i) all.samples.push_back({0, 1767323045.0, 1.0 * i});
  all.samples.push_back({1, 1767323045.0, 1});
  all.samples.push_back({2, 1767323045.0, 1});
  all.suppressed = {{"g", 5}, {"elastrun", 7}};
  Message message = all;
  REQUIRE(intake.admit(0, message, kStart));
  const auto& told = std::get<SamplesTold>(message);
  CHECK(told.samples.size() == 5000);
  CHECK(told.samples.back().value == 4999);
  using Counts = std::vector<std::pair<std::string, std::uint64_t>>;
  CHECK(told.suppressed == Counts{{"g", 5}, {"g", 1000}, {"worker", 1}});
  CHECK(intake.statistics().refused == 1);
  CHECK(intake.statistics().suppressed == 0);  // their sums are told
}

TEST_CASE("intake: events of one name and rank are limited; the next one tells how many are gone") {
  Intake intake;
  int passed = 0;
  for (int i = 0; i < 3000; ++i) {
    auto message = event("e");
    passed += intake.admit(0, message, kStart);
  }
  CHECK(passed == 1000);
  for (const int rank : {0, 1}) {
    auto other = event(rank == 0 ? "f" : "e");
    CHECK(intake.admit(rank, other, kStart));
  }
  auto next = event("e");
  CHECK(intake.admit(0, next, kStart + std::chrono::seconds(1)));
  const auto& attributes = std::get<WorkerEvent>(next).attributes;
  REQUIRE(attributes.size() == 1);
  CHECK(attributes[0].first == "suppressed");
  CHECK(std::get<std::int64_t>(attributes[0].second) == 2000);
}

TEST_CASE("intake: events with names without end share one limit") {
  Intake intake;
  int passed = 0;
  for (int i = 0; i < 10'000; ++i) {
    auto message = event("e" + std::to_string(i));
    passed += intake.admit(0, message, kStart);
  }
  CHECK(passed == 2000);  // the first of 1,000 names, and 1,000 of all others
}

}  // namespace
}  // namespace elastrun::agent
