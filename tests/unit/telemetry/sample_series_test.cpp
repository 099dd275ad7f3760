// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sample_series.hpp"

#include "clock.hpp"

#include <cmath>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::telemetry;

namespace {

struct Place {
  SetClock clock;
  Registry registry{clock};
  SampleSeries series{registry};

  void sample(std::string name, Value value, std::vector<Attribute> attributes = {}) {
    series.consume(
        {Record::Kind::Sample, {}, "g", std::move(name), std::move(value), std::move(attributes)});
  }
  std::vector<Point> points() {
    Cursor cursor(registry);
    return registry.collect(cursor).points;
  }
};

}  // namespace

TEST_CASE("sample series: the last value of each name and rank is a gauge of its scope") {
  Place place;
  place.sample("loss", 2.5, {{"rank", std::int64_t{3}}});
  place.sample("loss", 1.5, {{"rank", std::int64_t{3}}});
  place.sample("loss", std::int64_t{4}, {{"rank", std::int64_t{0}}});
  place.sample("done", true);
  const auto points = place.points();
  REQUIRE(points.size() == 3);
  CHECK(points[0].spec->name == "done");
  CHECK(points[0].value == Value(1.0));
  CHECK(points[1].labels == std::vector<Attribute>{{"rank", "0"}});
  CHECK(points[1].value == Value(4.0));
  CHECK(points[2].value == Value(1.5));
  CHECK(points[2].spec->scope == "g");
}

TEST_CASE("sample series: a total is a counter, which never falls") {
  Place place;
  const auto total = [&](Value value) {
    place.sample("tokens", std::move(value), {{"rank", std::int64_t{0}}, {"total", true}});
  };
  total(32.0);
  total(40.5);
  total(40.5);
  total(8.0);  // nobody's: what adds up does not fall
  CHECK(place.series.refused() == 1);
  total(41.0);
  place.sample("tokens", 7.0, {{"rank", std::int64_t{0}}});  // one name, one kind
  CHECK(place.series.refused() == 2);
  const auto points = place.points();
  REQUIRE(points.size() == 1);
  CHECK(points[0].kind == Kind::Counter);
  CHECK(points[0].value == Value(41.0));
  CHECK(points[0].labels == std::vector<Attribute>{{"rank", "0"}});
  CHECK(place.registry.close_windows().empty());
}

TEST_CASE("sample series: who is told of records is not told of the gauges as well") {
  Place place;
  place.sample("loss", 2.5);
  place.clock.mono += std::chrono::hours(1);
  CHECK(place.registry.close_windows().empty());
  CHECK(!place.registry.due());
}

TEST_CASE("sample series: any text becomes the name of an instrument") {
  CHECK(instrument_name("train/loss.v1-a_b") == "train/loss.v1-a_b");
  CHECK(instrument_name("7 \xc3\xa9=x\n") == "m_7____x_");
  CHECK(instrument_name("") == "m_");
  CHECK(instrument_name(std::string(400, 'x')).size() == 255);
  CHECK(is_name(instrument_name(std::string(400, '1'))));
  CHECK(is_name(instrument_name(std::string(3, '\0'))));
}

TEST_CASE("sample series: what is no number or the name of another instrument is counted") {
  Place place;
  const Counter<std::int64_t> other({.name = "mine", .scope = "g"}, place.registry);
  place.sample("mine", 1.0);
  place.sample("mine", 1.0);
  place.sample("text", "x");
  place.sample("none", {});
  CHECK(place.series.refused() == 4);
  place.sample("odd", std::nan(""));
  CHECK(place.series.refused() == 4);
  CHECK(place.points().size() == 2);
}

TEST_CASE("sample series: names without end are limited") {
  Place place;
  for (int i = 0; i < 6000; ++i) place.sample("n" + std::to_string(i), 1.0);
  CHECK(place.series.refused() == 1000);
  place.sample("n7", 2.0);
  CHECK(place.series.refused() == 1000);
}
