// SPDX-License-Identifier: Apache-2.0
#include "telemetry/registry.hpp"

#include "clock.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>

using namespace elastrun;
using namespace elastrun::telemetry;
using namespace std::chrono_literals;
using A = Aggregation;

namespace {

/// A registry with a clock set by hand, whose windows end in a list.
struct Place {
  const std::vector<Record>& after(Duration time) {
    clock.mono += time;
    return records = registry.close_windows();
  }
  SetClock clock;
  Registry registry{clock};
  std::vector<Record> records;
};

constexpr Duration kMinute = std::chrono::minutes(1);

Value aggregate(const Record& record, std::string_view name) {
  for (const auto& [key, value] : record.window->aggregates) {
    if (key == name) return value;
  }
  return "none of that name";
}

Value whole(std::int64_t number) {
  return number;
}

}  // namespace

TEST_CASE("registry: a start is the same each time, unless the clock is set back") {
  SetClock clock;
  Registry registry(clock);
  const Counter counter({.name = "n"}, registry);
  const auto start = [&] {
    const auto snapshot = registry.collect();
    return snapshot.start_of(snapshot.points.at(0));
  };
  const auto pass = [&](Duration mono, Duration wall) {
    clock.mono += mono;
    clock.wall_time += wall;
  };
  const auto first = start();
  CHECK(first == clock.wall_time);
  pass(10s, 10s + 70ns);  // the two are read one after the other
  CHECK(start() == first);
  pass(10s, 10s - 30ns);
  CHECK(start() == first);
  pass(1s, 3600s);  // slept, or set
  CHECK(start() == first);
  pass(1s, -7200s);
  CHECK(start() == clock.wall_time - 22s);
  telemetry::Snapshot plain;  // of no registry
  plain.at = {clock.mono, clock.wall_time};
  telemetry::Point point;
  point.start = clock.mono - 5s;
  CHECK(plain.start_of(point) == clock.wall_time - 5s);
}

TEST_CASE_FIXTURE(
    Place, "registry: one name and one spec are one series; another spec is refused, with places") {
  const Counter one({.name = "a", .unit = "s"}, registry);
  const Counter two({.name = "a", .unit = "s"}, registry);
  one.add(2);
  two.add(3);
  CHECK(registry.collect().points.at(0).value == whole(5));
  const Counter other_scope({.name = "a", .scope = "mine"}, registry);
  std::string text;
  try {
    const Counter clash({.name = "a", .unit = "By"}, registry);
  } catch (const std::invalid_argument& error) {
    text = error.what();
  }
  CHECK(text.find("instrument 'a'") == 0);
  CHECK(text.find("registry_test.cpp") != text.rfind("registry_test.cpp"));
  CHECK_THROWS_AS(Gauge({.name = "a", .unit = "s"}, registry), std::invalid_argument);
  for (const char* bad : {"", "9a", "a b", "a{x}"}) {
    CHECK_THROWS_AS(Gauge({.name = bad}, registry), std::invalid_argument);
  }
  CHECK_THROWS_AS(Gauge({.name = "g", .label_keys = {"x", "x"}}, registry), std::invalid_argument);
}

TEST_CASE_FIXTURE(Place, "registry: labels make series, up to a limit; the rest share one") {
  const Counter all({.name = "c", .label_keys = {"rank"}}, registry);
  all.add(100);  // without its label it goes nowhere
  for (int i = 0; i < 2010; ++i) all.with({std::to_string(i)}).add(1);
  CHECK_THROWS_AS(static_cast<void>(all.with({"1", "2"})), std::invalid_argument);
  std::int64_t sum = 0;
  std::size_t overflow = 0;
  for (const auto& point : registry.collect().points) {
    sum += std::get<std::int64_t>(point.value);
    if (point.labels.at(0).first == "otel.metric.overflow") {
      overflow += 1;
      CHECK(point.value == whole(10));
    }
  }
  CHECK(sum == 2010);
  CHECK(overflow == 1);
}

TEST_CASE_FIXTURE(Place, "registry: collectors of any period see the same totals") {
  const Stat stat({.name = "s"}, registry);
  for (int i = 0; i < 60; ++i) {
    stat.add(i);
    after(std::chrono::seconds(1));
    const auto so_far = registry.collect().points.at(0).summary;
    CHECK(so_far.count == static_cast<std::uint64_t>(i) + 1);
    CHECK(so_far.min == 0);
    CHECK(so_far.max == i);
  }
  REQUIRE(records.size() == 1);
  CHECK(records[0].window->count == 60);
  CHECK(registry.collect().points.at(0).summary.sum == 59 * 30);
}

TEST_CASE_FIXTURE(Place,
                  "registry: a window has the smallest, largest and last of its own values only") {
  registry.override_aggregations("s", {A::Min, A::Max, A::Value, A::Stddev});
  const Stat stat({.name = "s"}, registry);
  for (const double value : {5.0, -3.0, 8.0}) stat.add(value);
  const auto first = after(kMinute).at(0);
  CHECK(aggregate(first, "min") == Value(-3.0));
  CHECK(aggregate(first, "max") == Value(8.0));
  CHECK(aggregate(first, "value") == Value(8.0));
  CHECK(std::get<double>(aggregate(first, "stddev")) == doctest::Approx(std::sqrt(194.0 / 9)));
  stat.add(1);
  stat.add(2);
  const auto second = after(kMinute).at(0);
  CHECK(aggregate(second, "min") == Value(1.0));
  CHECK(aggregate(second, "max") == Value(2.0));
  CHECK(after(kMinute).empty());
}

TEST_CASE_FIXTURE(Place, "registry: NaN and infinities are counted apart") {
  const Stat stat({.name = "s"}, registry);
  for (const double value : {1.0, std::nan(""), HUGE_VAL, -HUGE_VAL}) stat.add(value);
  const auto window = after(kMinute).at(0).window;
  CHECK(window->count == 1);
  CHECK(window->dropped == 3);
  const auto all = registry.collect().points.at(0).summary;
  CHECK(all.sum == 1);
  CHECK(all.not_finite == 3);
}

TEST_CASE_FIXTURE(Place, "registry: a counter of whole numbers wraps, and its windows stay right") {
  const Counter counter({.name = "c"}, registry);
  counter.add(std::numeric_limits<std::int64_t>::max());
  after(kMinute);
  counter.add(7);
  CHECK(aggregate(after(kMinute).at(0), "sum") == whole(7));
}

TEST_CASE_FIXTURE(Place, "registry: one collection has one time for all series, by both clocks") {
  const Gauge one({.name = "a"}, registry);
  clock.mono += kMinute;
  const Gauge two({.name = "b"}, registry);
  clock.mono += kMinute;
  const auto snapshot = registry.collect();
  CHECK(snapshot.at.mono == clock.mono);
  CHECK(snapshot.at.wall == clock.wall_time);
  CHECK(snapshot.points.at(0).start == TimePoint());
  CHECK(snapshot.points.at(1).start == TimePoint(kMinute));
}

TEST_CASE_FIXTURE(Place, "registry: a counter takes no negative value, one that may fall does") {
  const Instrument<Kind::Counter> up({.name = "up"}, registry);
  const UpDown both({.name = "both"}, registry);
  CHECK(up.add(0.5));
  CHECK_FALSE(up.add(-1));
  CHECK_FALSE(up.add(std::nan("")));
  CHECK(both.add(-3));
  const auto points = registry.collect().points;
  CHECK(points.at(0).value == whole(-3));
  CHECK(points.at(1).value == Value(0.5));
}

TEST_CASE_FIXTURE(
    Place, "registry: an observer is asked once for each collection, and its failure is no data") {
  int calls = 0;
  bool broken = false;
  Observations observations(registry, "");
  observations.add(Kind::Gauge, {.name = "gpu.memory", .unit = "By", .label_keys = {"gpu"}},
                   [&](const Registry::Report& report) {
                     calls += 1;
                     if (broken) throw std::runtime_error("no driver");
                     report(10, {"0"});
                     report(20, {"1"});
                     CHECK(registry.due());  // an observer may use the registry
                   });
  // Its name is taken.
  observations.add(Kind::Gauge, {.name = "gpu.memory"}, [](const auto&) { FAIL("not asked"); });
  CHECK_THROWS_AS(Gauge({.name = "gpu.memory"}, registry), std::invalid_argument);
  const auto points = registry.collect().points;
  REQUIRE(points.size() == 2);
  CHECK(points[1].value == Value(20.0));
  CHECK(points[1].labels == std::vector<Attribute>{{"gpu", "1"}});
  broken = true;
  const auto gap = registry.collect().points;
  CHECK(gap.at(0).no_data);
  CHECK(gap.at(0).value == Value());
  CHECK(calls == 2);
}

TEST_CASE_FIXTURE(Place, "registry: an observer ends with its owner, and its series with it") {
  int source = 3;
  const auto observe = [&] {
    auto owner = std::make_unique<Observations>(registry, "s");
    owner->add(Kind::Counter, {.name = "requests"},
               [&source](const Registry::Report& report) { report(source, {}); });
    return owner;
  };
  {
    const auto owner = observe();
    CHECK(registry.collect().points.at(0).value == Value(3.0));
    source = 5;
    CHECK(registry.collect().points.at(0).value == Value(5.0));
  }
  CHECK(registry.collect().points.empty());
  const auto again = observe();  // the name is free
  CHECK(registry.collect().points.at(0).spec->scope == "s");
}

TEST_CASE_FIXTURE(Place, "registry: windows close when their time is over, late ones as one") {
  const Stat stat({.name = "batch.time", .unit = "s", .scope = "training", .label_keys = {"rank"}},
                  registry);
  const auto mine = stat.with({"3"});
  mine.add(1);
  mine.add(3);
  CHECK(after(kMinute / 2).empty());
  const auto first = after(kMinute / 2);
  REQUIRE(first.size() == 1);
  CHECK(first[0].scope == "training");
  CHECK(first[0].attributes == std::vector<Attribute>{{"rank", "3"}});
  CHECK(aggregate(first[0], "mean") == Value(2.0));
  CHECK(aggregate(first[0], "max") == Value(3.0));
  CHECK(first[0].window->count == 2);
  CHECK(first[0].window->start == TimePoint());
  CHECK(first[0].window->end == TimePoint(kMinute));
  CHECK(first[0].window->unit == "s");
  mine.add(5);
  const auto late = after(3 * kMinute);
  REQUIRE(late.size() == 1);
  CHECK(aggregate(late[0], "mean") == Value(5.0));
  CHECK(late[0].window->start == TimePoint(kMinute));
  CHECK(late[0].window->end == TimePoint(4 * kMinute));
  CHECK(late[0].window->index == 3);
  CHECK(after(9 * kMinute).empty());
  CHECK(registry.due() == TimePoint(14 * kMinute));
  mine.add(7);
  const auto last = registry.close_windows(Registry::Closing::AtTheEnd);
  REQUIRE(last.size() == 1);
  CHECK(last[0].window->index == 13);
  CHECK(last[0].window->end == clock.mono);
}

TEST_CASE_FIXTURE(
    Place,
    "registry: an instrument may have windows of another length, or be silent without news") {
  const Gauge quick({.name = "a", .window = kMinute / 2, .tells_empty = false}, registry);
  const Counter quiet({.name = "b", .tells_empty = false}, registry);
  const Counter none({.name = "c", .window = {}}, registry);
  quick.set(1);
  none.add();
  CHECK(registry.due() == TimePoint(kMinute / 2));
  const auto first = after(kMinute / 2);
  REQUIRE(first.size() == 1);
  CHECK(first[0].window->end == TimePoint(kMinute / 2));
  quiet.add(3);
  CHECK(after(kMinute / 2).size() == 2);
  CHECK(after(kMinute).size() == 1);  // the gauge holds, the total has not risen
}

TEST_CASE_FIXTURE(Place,
                  "registry: the user decides on aggregations: a mean becomes a 99th percentile") {
  const Stat stat({.name = "training.batch.time"}, registry);
  stat.add(1000);
  registry.override_aggregations("training.batch.*", {A::P99});
  const Stat late({.name = "training.batch.late"}, registry);
  for (int i = 1; i <= 100; ++i) {
    stat.add(i);
    late.add(i);
  }
  const auto windows = after(kMinute);
  REQUIRE(windows.size() == 2);
  for (const auto& record : windows) {
    CHECK(record.window->count == 100);
    CHECK(std::get<double>(aggregate(record, "p99")) == doctest::Approx(99).epsilon(0.011));
    CHECK(record.window->aggregates.size() == 1);
  }
  CHECK(registry.collect().points.at(1).summary.count == 101);
}

TEST_CASE_FIXTURE(
    Place, "registry: an empty window is nothing, a zero, no data or the last one, by its kind") {
  registry.override_aggregations("f", {A::Value});
  const Stat stat({.name = "a"}, registry);
  const Counter counter({.name = "b"}, registry);
  const Gauge unset({.name = "c"}, registry), overridden({.name = "f"}, registry);
  double value = 7;
  Observations observed(registry, "");
  observed.add(Kind::Gauge, {.name = "d"}, [&](const Registry::Report& report) {
    if (value > 0) report(value, {});
  });
  CHECK(after(kMinute).size() == 2);  // before the observer's series was made
  CHECK(after(kMinute).size() == 3);
  value = 0;  // it reports nothing any more
  const auto& records = after(kMinute);
  REQUIRE(records.size() == 3);
  CHECK(aggregate(records[0], "sum") == whole(0));
  CHECK_FALSE(records[0].window->no_data);
  CHECK(records[1].window->no_data);
  CHECK(aggregate(records[1], "value") == Value());
  CHECK(aggregate(records[2], "value") == Value(7.0));
  CHECK(records[2].window->count == 0);
}

TEST_CASE_FIXTURE(Place, "registry: counters tell the increase of a window, gauges their value") {
  const Counter counter({.name = "c"}, registry);
  const Gauge gauge({.name = "g"}, registry);
  counter.add(3);
  after(kMinute);
  counter.add(4);
  gauge.set(0.25);
  const auto records = after(kMinute);
  REQUIRE(records.size() == 2);
  CHECK(aggregate(records[0], "sum") == whole(4));
  CHECK(aggregate(records[1], "value") == Value(0.25));
  CHECK(aggregate(after(kMinute).at(0), "sum") == whole(0));
}

TEST_CASE("registry: patterns know dots") {
  const auto count = [&](const char* pattern) {
    return std::ranges::count_if(std::array{"a", "a.b", "a.b.c", "ab.c"},
                                 [&](const char* name) { return fits_pattern(pattern, name); });
  };
  CHECK(count("a") == 1);
  CHECK(count("a.*") == 1);
  CHECK(count("a.**") == 2);
  CHECK(count("a**") == 4);
  CHECK(count("*.c") == 1);
  CHECK(count("**.c") == 2);
  CHECK(count("") == 0);
}

namespace {

Point point(Kind kind, Value value, std::vector<Attribute> labels = {}) {
  Point point;
  point.spec = std::make_shared<const Spec>(Spec{.name = "process.cpu.time", .scope = "s"});
  point.kind = kind;
  point.value = std::move(value);
  point.labels = std::move(labels);
  return point;
}

}  // namespace

TEST_CASE("point records: a point becomes a sample with its labels, ranks as numbers") {
  const Stamp at{TimePoint(std::chrono::seconds(7)), WallTime(std::chrono::hours(1))};
  const auto records = records_of({point(Kind::Counter, 2.5, {{"rank", "3"}, {"mode", "user"}}),
                                   point(Kind::Gauge, std::int64_t{4}, {{"rank", "all"}})},
                                  at);
  REQUIRE(records.size() == 2);
  CHECK(records[0].kind == Record::Kind::Sample);
  CHECK(records[0].stamp.wall == at.wall);
  CHECK(records[0].scope == "s");
  CHECK(records[0].name == "process.cpu.time");
  CHECK(records[0].value == Value(2.5));
  CHECK(records[0].attributes ==
        std::vector<Attribute>{{"rank", std::int64_t{3}}, {"mode", "user"}, {"total", true}});
  CHECK(records[1].attributes == std::vector<Attribute>{{"rank", "all"}});
}

TEST_CASE("point records: what has no single number is no sample") {
  auto unset = point(Kind::Gauge, 1.0);
  unset.no_data = true;
  CHECK(
      records_of(
          {unset, point(Kind::Gauge, {}), point(Kind::Stat, 1.0), point(Kind::Histogram, 1.0)}, {})
          .empty());
}
