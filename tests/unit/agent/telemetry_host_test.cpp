// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_metrics.hpp"
#include "support/fake_clock.hpp"

#include <doctest/doctest.h>
#include <utility>

using namespace elastrun;
using namespace elastrun::telemetry;
using agent::TelemetryHost;

namespace {

struct Place {
  test::FakeClock clock;
  Pipeline pipeline{clock};
  Registry registry{clock};
  TelemetryHost host{clock, pipeline, registry};
  Counter count{{.name = "count"}, registry};
};

struct HeardNames final : Sink {
  void consume(const Record& record) override { names.push_back(record.name); }
  std::vector<std::string> names;
};

struct Puller final : exporter::MetricsSink {
  Puller() : MetricsSink("puller") {}
  bool is_told() const override { return false; }
  bool pulls() const override { return true; }
  void pull(const Snapshot& snapshot) override {
    pulls_so_far += 1;
    seen.clear();
    for (const auto& point : snapshot.points) seen.emplace_back(point.spec->name, point.value);
  }
  void finish(std::function<void()> done) override { done(); }
  exporter::SinkAccount account() const override { return {}; }
  std::vector<std::pair<std::string, Value>> seen;
  int pulls_so_far = 0;
};

}  // namespace

TEST_CASE("telemetry host: a job that asks for no metrics has none") {
  spec::JobSpec spec;
  CHECK(!TelemetryHost::is_wanted(spec));
  spec.metrics.push_back({});
  CHECK(TelemetryHost::is_wanted(spec));
}

TEST_CASE("telemetry host: no wake-up unless somebody is told of windows and one is open") {
  Place place;
  place.count.add();
  place.host.recorded();
  CHECK(place.clock.armed() == 0);  // nobody is told
  const auto windows = std::make_shared<HeardNames>();
  place.pipeline.route({.kind = Record::Kind::Event}, std::make_shared<HeardNames>());
  place.host.recorded();
  CHECK(place.clock.armed() == 0);  // of events only
  place.pipeline.route({.kind = Record::Kind::Window}, windows);
  CHECK(place.clock.armed() == 0);  // nothing is recorded
  place.host.recorded();
  place.host.recorded();
  CHECK(place.clock.armed() == 1);
  place.clock.advance(std::chrono::minutes(1));
  CHECK(windows->names == std::vector<std::string>{"count"});
  CHECK(place.clock.armed() == 0);
}

TEST_CASE("telemetry host: who pulls sees instruments and the samples of the pipeline") {
  Place place;
  place.pipeline.sample("group", "early", std::int64_t{1});
  place.host.take_samples();
  place.pipeline.sample("group", "loss", 0.5);
  place.count.add(2);
  const auto points = place.registry.collect().points;
  REQUIRE(points.size() == 2);
  CHECK(points[0].value == Value(std::int64_t{2}));
  CHECK(points[1].spec->name == "loss");
  CHECK(points[1].value == Value(0.5));
}

TEST_CASE("telemetry host: gauges of workers end with their round, counters with their rank") {
  Place place;
  place.host.take_samples();
  const auto sample = [&](std::string name, std::int64_t rank, bool total) {
    Record record;
    record.kind = Record::Kind::Sample;
    record.scope = "group";
    record.name = std::move(name);
    record.value = 1.0;
    record.attributes = {{"rank", rank}, {"total", total}};
    place.pipeline.emit(std::move(record));
  };
  for (const std::int64_t rank : {4, 5}) {
    sample("loss", rank, false);
    sample("tokens", rank, true);
  }
  place.pipeline.sample("elastrun.worker", "step", std::int64_t{7});
  place.pipeline.sample("own", "gauge", 1.0);
  place.count.add();
  CHECK(place.registry.collect().points.size() == 7 + 2);  // and what the losses come to
  place.host.round_began(2, 3);                            // ranks 2, 3 and 4
  const auto points = place.registry.collect().points;
  std::vector<std::string> names;
  for (const auto& point : points) names.push_back(point.spec->name);
  CHECK(names == std::vector<std::string>{"count", "tokens", "gauge"});
  CHECK(points.at(1).labels == std::vector<Attribute>{{"rank", "4"}});
}

TEST_CASE("telemetry host: what a round told last is pulled before the next one begins") {
  Place place;
  const auto puller = std::make_shared<Puller>();
  place.host.add(puller, {{}});
  const auto put = [&] {
    Record record;
    record.kind = Record::Kind::Sample;
    record.scope = "group";
    record.name = "loss";
    record.value = 1.5;
    record.attributes = {{"rank", std::int64_t{0}}};
    place.pipeline.emit(std::move(record));
  };
  place.host.round_began(0, 1);
  CHECK(puller->pulls_so_far == 0);
  put();
  place.host.round_began(0, 1);
  CHECK(puller->pulls_so_far == 1);
  REQUIRE(puller->seen.size() == 3);  // with the counter of this place
  CHECK(puller->seen[1] == std::pair(std::string("loss"), Value(1.5)));
  CHECK(puller->seen[2].first == "loss.samples");
  place.host.finish([] {});
  CHECK(puller->seen.size() == 1);
}

TEST_CASE("telemetry host: who pulls gets what is gathered for it, at every interval") {
  using Seen = std::vector<std::pair<std::string, Value>>;
  Place place;
  const auto page = std::make_shared<Puller>(), part = std::make_shared<Puller>();
  std::int64_t total = 100;
  TelemetryHost::TakePoints answer;
  place.host.add_source([&](TelemetryHost::TakePoints take) { answer = std::move(take); },
                        {"system."});
  place.host.add(page, {{}});
  place.host.add(part, {{.name = "sys*"}});
  const auto gathered = [&] {
    Point point;
    point.spec = std::make_shared<const Spec>(Spec{.name = "system.total"});
    point.kind = Kind::Counter;
    point.value = total;
    std::exchange(answer, {})({point});
  };
  place.clock.advance(std::chrono::seconds(30));
  CHECK(!answer);  // nothing was recorded so far
  place.count.add(2);
  place.host.recorded();
  place.clock.advance(std::chrono::seconds(1));
  REQUIRE(answer);
  CHECK(page->pulls_so_far == 0);  // not before it is there
  gathered();
  CHECK(page->seen == Seen{{"count", std::int64_t{2}}, {"system.total", std::int64_t{100}}});
  CHECK(part->seen == Seen{{"system.total", std::int64_t{100}}});
  total = 104;
  place.clock.advance(std::chrono::seconds(10));
  REQUIRE(answer);
  gathered();
  CHECK(page->seen.back().second == Value(std::int64_t{104}));
  place.clock.advance(std::chrono::seconds(10));
  REQUIRE(answer);  // and does not come before the end
  place.host.finish([] {});
  CHECK(page->pulls_so_far == 3);
  CHECK(page->seen.back().second == Value(std::int64_t{104}));
  CHECK(part->seen == Seen{{"system.total", std::int64_t{104}}});
  gathered();
  CHECK(page->pulls_so_far == 3);
  CHECK(place.clock.armed() == 0);
}

TEST_CASE("telemetry host: who is told hears of what is gathered if its user has selected it") {
  struct Told final : exporter::MetricsSink {
    Told() : MetricsSink("told") {}
    void consume(const Record& record) override { names.push_back(record.name); }
    void finish(std::function<void()> done) override { done(); }
    exporter::SinkAccount account() const override { return {}; }
    std::vector<std::string> names;
  };
  using By = TelemetryHost::By;
  using Names = std::vector<std::string>;
  Place place;
  TelemetryHost::TakePoints answer;
  place.host.add_source([&](TelemetryHost::TakePoints take) { answer = std::move(take); },
                        {"system.", "hw."});
  const auto all = std::make_shared<Told>(), cpu = std::make_shared<Told>();
  const auto windows = std::make_shared<Told>();
  place.host.add(all, {{}});
  place.host.add(windows, {{.name = "loss"}, {.name = "system.*", .kind = Record::Kind::Window}},
                 By::User);
  place.host.add(windows, {{.scope = "elastrun.agent"}, {.at_least = Severity::Warn}}, By::User);
  place.count.add();
  place.host.recorded();
  CHECK(place.clock.armed() == 1);  // for a window alone: nobody wants to hear of the machine
  place.host.add(cpu, {{.name = "count"}, {.name = "system.cpu*"}}, By::User);
  place.host.recorded();
  place.clock.advance(std::chrono::seconds(1));
  REQUIRE(answer);
  const auto heard = std::make_shared<HeardNames>();
  place.pipeline.route({}, heard);
  const auto gathered = [&] {
    std::vector<Point> points(2);
    points[0].spec = std::make_shared<const Spec>(Spec{.name = "system.cpu.time"});
    points[1].spec = std::make_shared<const Spec>(Spec{.name = "hw.power"});
    for (auto& point : points) point.value = 1.0;
    for (auto& point : points) point.kind = Kind::Gauge;
    std::exchange(answer, {})(std::move(points));
  };
  gathered();
  CHECK(cpu->names == Names{"system.cpu.time"});
  CHECK(all->names.empty());
  CHECK(windows->names.empty());
  CHECK(heard->names.empty());  // it does not go by the pipeline, and so not into the journal
  place.clock.advance(std::chrono::seconds(10));
  REQUIRE(answer);
  gathered();
  CHECK(cpu->names.size() == 2);
  place.host.finish([] {});
}

TEST_CASE("telemetry host: its end leaves no route") {
  test::FakeClock clock;
  Pipeline pipeline(clock);
  Registry registry(clock);
  {
    TelemetryHost host(clock, pipeline, registry);
    host.take_samples();
    CHECK(pipeline.wants("any"));
  }
  CHECK(!pipeline.wants("any"));
}
