// SPDX-License-Identifier: Apache-2.0
#include "telemetry/registry.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::telemetry;

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
