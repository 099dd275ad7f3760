// SPDX-License-Identifier: Apache-2.0
#include "clock.hpp"
#include "telemetry/registry.hpp"

#include <cmath>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::telemetry;

namespace {

struct SeriesPlace {
  SetClock clock;
  Registry registry{clock};

  void sample(std::string name, Value value, std::vector<Attribute> attributes = {}) {
    registry.take(
        {Record::Kind::Sample, {}, "g", std::move(name), std::move(value), std::move(attributes)});
  }
  std::vector<Point> all_points() { return registry.collect().points; }
  /// Without what is beside the gauges of workers.
  std::vector<Point> points() { return without_samples(all_points()); }
  static std::vector<Point> without_samples(std::vector<Point> points) {
    std::erase_if(points, [](const Point& one) { return one.spec->name.ends_with(".samples"); });
    return points;
  }
};

}  // namespace

TEST_CASE("sample series: the last value of each name and rank is a gauge of its scope") {
  SeriesPlace place;
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
  SeriesPlace place;
  const auto total = [&](Value value) {
    place.sample("tokens", std::move(value), {{"rank", std::int64_t{0}}, {"total", true}});
  };
  total(32.0);
  total(40.5);
  total(40.5);
  total(8.0);  // nobody's: what adds up does not fall
  CHECK(place.registry.refused_samples() == 1);
  total(41.0);
  place.sample("tokens", 7.0, {{"rank", std::int64_t{0}}});  // one name, one kind
  CHECK(place.registry.refused_samples() == 2);
  const auto points = place.points();
  REQUIRE(points.size() == 1);
  CHECK(points[0].kind == Kind::Counter);
  CHECK(points[0].value == Value(41.0));
  CHECK(points[0].labels == std::vector<Attribute>{{"rank", "0"}});
  CHECK(place.registry.close_windows().empty());
}

TEST_CASE("sample series: names are bound, not the ranks that have them") {
  SeriesPlace place;
  int refused = 0;
  const auto sample = [&](int name, std::int64_t rank) {
    const auto why = place.registry.take(
        {Record::Kind::Sample, {}, "g", "layer." + std::to_string(name), 1.0, {{"rank", rank}}});
    if (why.empty()) return;
    CHECK(why == "there are too many names");
    ++refused;
  };
  for (int name = 0; name < 700; ++name) {
    for (int rank = 0; rank < 8; ++rank) sample(name, rank);
  }
  CHECK(refused == 0);
  CHECK(place.points().size() == 5600);
  for (int name = 700; name < 5010; ++name) sample(name, 0);
  CHECK(refused == 10);
  CHECK(place.registry.refused_samples() == 10);
  sample(1, 9);  // a known name
  CHECK(refused == 10);
}

TEST_CASE("sample series: what has ended is seen no more, and may begin anew") {
  SeriesPlace place;
  const auto sample = [&](std::string name, std::int64_t rank, double value, bool total) {
    place.sample(std::move(name), value, {{"rank", rank}, {"total", total}});
  };
  sample("loss", 0, 1, false);
  sample("loss", 1, 2, false);
  sample("tokens", 1, 100, true);
  CHECK(place.registry.collect().points.size() == 3 + 2);
  place.registry.end_samples([](const auto& key) { return key.rank == "1"; });
  CHECK(place.all_points().size() == 2);
  auto points = place.without_samples(place.registry.collect().points);
  REQUIRE(points.size() == 1);
  CHECK(points[0].labels == std::vector<Attribute>{{"rank", "0"}});
  sample("tokens", 1, 120, true);
  points = place.without_samples(place.registry.collect().points);
  REQUIRE(points.size() == 2);
  CHECK(points[1].value == Value(120.0));
  place.registry.end_samples([](const auto&) { return true; });
  CHECK(place.all_points().empty());
  sample("loss", 0, 3, true);  // of another kind now: the name is free
  CHECK(place.points().at(0).kind == Kind::Counter);
  CHECK(place.registry.refused_samples() == 0);
}

TEST_CASE("sample series: who is told of records is not told of the gauges as well") {
  SeriesPlace place;
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
  SeriesPlace place;
  const Counter other({.name = "mine", .scope = "g"}, place.registry);
  place.sample("mine", 1.0);
  place.sample("mine", 1.0);
  place.sample("text", "x");
  place.sample("none", {});
  CHECK(place.registry.refused_samples() == 4);
  place.sample("odd", std::nan(""));
  CHECK(place.registry.refused_samples() == 4);
  CHECK(place.points().size() == 2);
}

TEST_CASE("sample series: beside the gauge of a worker there are the count and sum of all") {
  SeriesPlace place;
  const auto batch = [](double last, double sum, std::uint64_t count) {
    auto all = std::make_shared<Summary>();
    all->count = count;
    all->last = last;
    all->sum = sum;
    all->min = 1;
    all->max = 9;
    return all;
  };
  const auto put = [&](Value value, std::shared_ptr<const Summary> all) {
    Record record{Record::Kind::Sample,       {}, "g", "loss", std::move(value),
                  {{"rank", std::int64_t{1}}}};
    record.summary = std::move(all);
    place.registry.take(record);
  };
  put(2.0, nullptr);
  put(3.0, batch(3, 30, 10));
  put(HUGE_VAL, nullptr);
  put(4.0, batch(4, 5, 2));
  const auto points = place.all_points();
  REQUIRE(points.size() == 2);
  CHECK(points[0].value == Value(4.0));
  CHECK(points[1].spec->name == "loss.samples");
  CHECK(points[1].kind == Kind::Stat);
  CHECK(points[1].labels == points[0].labels);
  CHECK(points[1].summary.count == 13);
  CHECK(points[1].summary.sum == 37);
  CHECK(points[1].summary.min == 1);
  // With their gauge they end, and leave no trace.
  place.registry.end_samples([](const Registry::SampleKey&) { return true; });
  CHECK(place.all_points().empty());
}

TEST_CASE("sample series: labels, unit and help are those of the first sample of a name") {
  SeriesPlace place;
  const auto put = [&](double value, Meaning meaning) {
    Record record{Record::Kind::Sample, {}, "g", "norm", value, {{"rank", std::int64_t{0}}}};
    record.meaning = std::make_shared<const Meaning>(std::move(meaning));
    place.registry.take(record);
  };
  put(1, {"s", "A help.", {{"layer", "1"}}});
  put(2, {"", "", {{"layer", "2"}}});
  put(3, {"s", "A help.", {{"head", "1"}}});
  put(4, {"s", "A help.", {}});
  CHECK(place.registry.refused_samples() == 2);  // other labels than before
  const auto points = place.all_points();
  REQUIRE(points.size() == 4);
  CHECK(points[0].labels == std::vector<Attribute>{{"rank", "0"}, {"layer", "1"}});
  CHECK(points[1].value == Value(2.0));
  CHECK(points[1].spec->unit == "s");
  CHECK(points[2].spec->name == "norm.samples");
  CHECK(points[2].spec->help == "A help.");
}

TEST_CASE("sample series: a label whose key is no name of an instrument keeps its series") {
  SeriesPlace place;
  for (const char* layer : {"a", "b"}) {
    Record record{Record::Kind::Sample, {}, "g", "norm", 1.0, {{"rank", std::int64_t{0}}}};
    record.meaning = std::make_shared<const Meaning>(
        Meaning{"", "", {{"0", "x"}, {"data set", "y"}, {"\u5c42", layer}, {"\u6a21", "z"}}});
    place.registry.take(record);
  }
  CHECK(place.registry.refused_samples() == 0);
  const auto points = place.all_points();
  REQUIRE(points.size() == 4);
  CHECK(points[1].labels ==
        std::vector<Attribute>{
            {"rank", "0"}, {"m_0", "x"}, {"data_set", "y"}, {"m____", "b"}, {"m_____", "z"}});
}

TEST_CASE("sample series: a sample with a sketch is a histogram, which stays small") {
  SeriesPlace place;
  const auto put = [&](const std::vector<double>& values) {
    auto all = std::make_shared<Summary>();
    all->sketch.emplace();
    for (const double value : values) all->add(value);
    Record record{Record::Kind::Sample, {}, "g", "step", 1.0, {{"rank", std::int64_t{0}}}};
    record.summary = all;
    place.registry.take(record);
  };
  put({0.5, 1, 2});
  put({0.5, 0});
  auto points = place.all_points();
  REQUIRE(points.size() == 1);
  CHECK(points[0].kind == Kind::Histogram);
  CHECK(points[0].summary.count == 5);
  CHECK(points[0].summary.sketch->count() == 5);
  CHECK(points[0].summary.sketch->zeros() == 1);
  for (int power = -300; power <= 300; power += 2) put({std::pow(10, power)});
  points = place.all_points();
  CHECK(points[0].summary.sketch->positive().counts.size() <= Series::kMostBuckets);
  CHECK(points[0].summary.sketch->count() == 5 + 301);
  // A plain sample of that name is refused.
  place.sample("step", 1.0, {{"rank", std::int64_t{0}}});
  CHECK(place.registry.refused_samples() == 1);
}
