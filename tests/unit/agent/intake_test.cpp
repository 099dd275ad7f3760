// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/intake.hpp"

#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using namespace workers;

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
