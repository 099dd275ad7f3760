// SPDX-License-Identifier: Apache-2.0
#include "telemetry/event.hpp"

#include <doctest/doctest.h>
#include <set>
#include <thread>

using namespace elastrun;
using namespace elastrun::telemetry;

namespace {

/// Hears what the process's pipeline carries, for the length of a test.
struct Heard final : Sink {
  void consume(const Record& record) override { records.push_back(record); }
  std::vector<Record> records;
};
struct Listening {
  explicit Listening(Selector selector)
      : id(process_pipeline().route(std::move(selector), heard)) {}
  ~Listening() { process_pipeline().unroute(id); }
  std::shared_ptr<Heard> heard = std::make_shared<Heard>();
  RouteId id;
};

bool try_event(int& evaluated) {
  auto e = event<"test.event.one">();
  if (!e) return false;
  e.message("m").set("n", std::int64_t{++evaluated});
  return true;
}

}  // namespace

TEST_CASE("event: nobody listens, so nothing is evaluated; somebody does, so it arrives") {
  int evaluated = 0;
  CHECK_FALSE(try_event(evaluated));
  CHECK(evaluated == 0);
  {
    const Listening all({"test.*", {}, Record::Kind::Event});
    CHECK(try_event(evaluated));
    REQUIRE(all.heard->records.size() == 1);
    const auto& record = all.heard->records[0];
    CHECK(record.scope == "test.event");
    CHECK(record.name == "test.event.one");
    CHECK(record.severity == Severity::Info);
    CHECK(record.id != 0);
    CHECK(*record.find("message") == Value("m"));
    CHECK(*record.find("n") == Value(std::int64_t{1}));
  }
  CHECK_FALSE(try_event(evaluated));
}

TEST_CASE("event: a route of another name does not switch it on, and the user may switch it off") {
  int evaluated = 0;
  const Listening other({"other", {}, {}});
  CHECK_FALSE(try_event(evaluated));
  const Listening all({});
  CHECK(enable_events("test.event.*", false) >= 1);
  CHECK_FALSE(try_event(evaluated));
  enable_events("test.event.*", true);
  CHECK(try_event(evaluated));
}

TEST_CASE("event: a route takes what is severe enough") {
  const Listening errors({.scope = "test*", .at_least = Severity::Error});
  event<"test.severe">(Severity::Info).message("no");
  event<"test.severe">(Severity::Error).message("yes");
  log("test.severe", "also", {}, Severity::Fatal);
  CHECK(log("test.severe", "quiet") == 0);
  REQUIRE(errors.heard->records.size() == 2);
  CHECK(*errors.heard->records[0].find("message") == Value("yes"));
  CHECK(errors.heard->records[1].severity == Severity::Fatal);
  CHECK(to_text(Severity::Warn) == "WARN");
}

TEST_CASE("event: what happened earlier keeps both times") {
  const Listening all({});
  const Stamp then{TimePoint(Duration(5)), WallTime(Duration(7))};
  event<"test.late">().happened(then);
  const auto& record = all.heard->records.at(0);
  CHECK(record.stamp.wall == then.wall);
  CHECK(record.stamp.mono == then.mono);
  CHECK(std::get<std::int64_t>(*record.find("observed")) > 7);
}

TEST_CASE("event: of a flood some pass, and the next that passes tells how many did not") {
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

  const Listening all({});
  CHECK(limit_events("test.flood", {.rate = 0, .burst = 2}) == 1);
  for (int i = 0; i < 10; ++i) event<"test.flood">();
  CHECK(all.heard->records.size() == 2);
  CHECK(event_type<"test.flood">.suppressed() == 8);
}

TEST_CASE("event: ids are not used twice, whichever thread asks") {
  std::vector<std::vector<std::uint64_t>> parts(4);
  {
    std::vector<std::jthread> threads;
    for (auto& part : parts) {
      threads.emplace_back([&part] {
        for (int i = 0; i < 20'000; ++i) part.push_back(next_record_id());
      });
    }
  }
  std::set<std::uint64_t> all;
  for (const auto& part : parts) all.insert(part.begin(), part.end());
  CHECK(all.size() == 80'000);
  CHECK_FALSE(all.contains(0));
}
