// SPDX-License-Identifier: Apache-2.0
#include "telemetry/route.hpp"

#include "clock.hpp"

#include <atomic>
#include <doctest/doctest.h>
#include <future>
#include <stdexcept>
#include <thread>

using namespace elastrun;
using namespace elastrun::telemetry;

namespace {

struct RoutedSink final : Sink {
  void consume(const Record& record) override {
    names.push_back(record.name);
    if (then) then(record);
  }
  void flush(TimePoint) override { ++flushed; }
  std::vector<std::string> names;
  std::function<void(const Record&)> then;
  int flushed = 0;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE_FIXTURE(OnePipeline,
                  "pipeline: with no route nobody wants anything and nothing happens") {
  CHECK_FALSE(pipeline.wants("x"));
  pipeline.event("x", "e");
  pipeline.flush({});
  CHECK_FALSE(pipeline.unroute(7));
  CHECK(pipeline.lost() == 0);
}

TEST_CASE_FIXTURE(OnePipeline, "pipeline: a route carries what its selector matches, in order") {
  const auto events = std::make_shared<RoutedSink>(), agent = std::make_shared<RoutedSink>();
  pipeline.route({{}, {}, Record::Kind::Event}, events);
  pipeline.route({"elastrun.*", "worker.*", {}}, agent);
  CHECK(pipeline.wants("anything"));
  pipeline.event("elastrun.agent", "worker.ended");
  pipeline.event("elastrun.agent", "round");
  pipeline.sample("elastrun.agent", "worker.count", std::int64_t{3});
  pipeline.event("other", "worker.ended");
  CHECK(events->names == Names{"worker.ended", "round", "worker.ended"});
  CHECK(agent->names == Names{"worker.ended", "worker.count"});
  pipeline.flush({});
  CHECK(agent->flushed == 1);
}

TEST_CASE_FIXTURE(OnePipeline,
                  "pipeline: single samples reach those who ask for each, sums the others") {
  const auto each = std::make_shared<RoutedSink>(), sums = std::make_shared<RoutedSink>();
  pipeline.route({}, sums);
  CHECK_FALSE(pipeline.wants_each("g"));
  pipeline.route({.scope = "g", .each = true}, each);
  CHECK(pipeline.wants_each("g"));
  CHECK_FALSE(pipeline.wants_each("h"));
  const auto emit = [&](std::string name, Detail detail) {
    Record record{Record::Kind::Sample, {}, "g", std::move(name), 1.0, {}};
    record.detail = detail;
    pipeline.emit(std::move(record));
  };
  emit("whole", Detail::Whole);
  emit("one", Detail::Each);
  emit("sum", Detail::Summed);
  CHECK(each->names == Names{"whole", "one"});
  CHECK(sums->names == Names{"whole", "sum"});
}

TEST_CASE_FIXTURE(OnePipeline, "pipeline: records carry the time, the value and their attributes") {
  clock.mono += std::chrono::seconds(5);
  const auto sink = std::make_shared<RoutedSink>();
  pipeline.route({}, sink);
  sink->then = [&](const Record& record) {
    CHECK(record.stamp.mono == clock.mono);
    CHECK(record.stamp.wall == clock.wall_time);
    REQUIRE(record.find("a") != nullptr);
    CHECK(std::get<std::int64_t>(*record.find("a")) == 1);
    CHECK(record.find("b") == nullptr);
  };
  pipeline.event("s", "e", {{"a", std::int64_t{1}}});
  CHECK(sink->names.size() == 1);
}

TEST_CASE_FIXTURE(
    OnePipeline,
    "pipeline: a sink that throws loses its own records, counted, and disturbs nobody") {
  const auto bad = std::make_shared<RoutedSink>(), good = std::make_shared<RoutedSink>();
  bad->then = [](const Record&) { throw std::runtime_error("no"); };
  pipeline.route({}, bad);
  pipeline.route({}, good);
  pipeline.event("s", "one");
  pipeline.event("s", "two");
  CHECK(good->names == Names{"one", "two"});
  CHECK(pipeline.lost() == 2);
}

TEST_CASE_FIXTURE(OnePipeline,
                  "pipeline: what a sink emits comes after the record in hand, at every sink") {
  const auto first = std::make_shared<RoutedSink>(), second = std::make_shared<RoutedSink>();
  first->then = [&](const Record& record) {
    if (record.name == "one") pipeline.event("s", "two");
    if (record.name == "two") pipeline.event("s", "three");
  };
  pipeline.route({}, first);
  pipeline.route({}, second);
  pipeline.event("s", "one");
  CHECK(first->names == Names{"one", "two", "three"});
  CHECK(second->names == first->names);
}

TEST_CASE_FIXTURE(OnePipeline,
                  "pipeline: a sink may route and unroute, also itself, while it is called") {
  auto leaving = std::make_shared<RoutedSink>();
  const auto late = std::make_shared<RoutedSink>(), last = std::make_shared<RoutedSink>();
  const auto id = pipeline.route({}, leaving);
  pipeline.route({}, last);
  leaving->then = [&, id](const Record&) {
    CHECK(pipeline.unroute(id));
    CHECK_FALSE(pipeline.unroute(id));
    pipeline.route({}, late);
  };
  const std::weak_ptr<RoutedSink> watch = leaving;
  leaving.reset();
  pipeline.event("s", "one");
  CHECK(watch.expired());
  pipeline.event("s", "two");
  CHECK(late->names == Names{"two"});
  CHECK(last->names == Names{"one", "two"});
}

TEST_CASE_FIXTURE(
    OnePipeline, "pipeline: records of many threads reach a sink one at a time, and none is lost") {
  const auto sink = std::make_shared<RoutedSink>();
  std::atomic<int> inside{0};
  bool alone = true;
  sink->then = [&](const Record&) {
    alone = alone && inside.fetch_add(1) == 0;
    inside.fetch_sub(1);
  };
  pipeline.route({}, sink);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) pipeline.event("s", "e");
      });
    }
  }
  CHECK(sink->names.size() == 4000);
  CHECK(alone);
  CHECK(pipeline.dropped() == 0);
}

TEST_CASE_FIXTURE(
    OnePipeline,
    "pipeline: a sink that stands still delays no other thread; what is too much is counted") {
  const auto sink = std::make_shared<RoutedSink>();
  std::promise<void> inside, free;
  sink->then = [&, first = true](const Record&) mutable {
    if (!std::exchange(first, false)) return;
    inside.set_value();
    free.get_future().wait();
  };
  pipeline.route({}, sink);
  std::jthread slow([&] { pipeline.event("s", "slow"); });
  inside.get_future().wait();
  for (std::size_t i = 0; i < Pipeline::kWaiting + 10; ++i) pipeline.event("s", "e");
  CHECK(pipeline.dropped() == 10);
  free.set_value();
  slow.join();
  CHECK(sink->names.size() == Pipeline::kWaiting + 1);
}
