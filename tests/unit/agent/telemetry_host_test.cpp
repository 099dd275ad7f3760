// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry_host.hpp"

#include "support/fake_clock.hpp"
#include "telemetry/instruments.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::telemetry;
using agent::TelemetryHost;

namespace {

struct Place {
  test::FakeClock clock;
  Pipeline pipeline{clock};
  Registry registry{clock};
  TelemetryHost host{clock, pipeline, registry};
  Counter<std::int64_t> count{{.name = "count"}, registry};
};

struct Heard final : Sink {
  void consume(const Record& record) override { names.push_back(record.name); }
  std::vector<std::string> names;
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
  const auto windows = std::make_shared<Heard>();
  place.pipeline.route({.kind = Record::Kind::Event}, std::make_shared<Heard>());
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
  const auto cursor = place.host.open_cursor();
  place.pipeline.sample("group", "loss", 0.5);
  place.count.add(2);
  const auto points = place.host.collect(*cursor).points;
  REQUIRE(points.size() == 2);
  CHECK(points[0].value == Value(std::int64_t{2}));
  CHECK(points[1].spec->name == "loss");
  CHECK(points[1].value == Value(0.5));
}

TEST_CASE("telemetry host: its end leaves no route") {
  test::FakeClock clock;
  Pipeline pipeline(clock);
  Registry registry(clock);
  {
    TelemetryHost host(clock, pipeline, registry);
    const auto cursor = host.open_cursor();
    CHECK(pipeline.wants("any"));
  }
  CHECK(!pipeline.wants("any"));
}
