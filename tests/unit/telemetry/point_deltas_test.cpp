// SPDX-License-Identifier: Apache-2.0
#include "telemetry/points.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::telemetry;

namespace {

Point point(const char* name, Kind kind, Value value, const char* label = "a") {
  Point one;
  one.spec = std::make_shared<const Spec>(Spec{.name = name});
  one.kind = kind;
  one.labels = {{"label", label}};
  one.value = std::move(value);
  return one;
}

Value whole_value(std::int64_t number) {
  return number;
}

}  // namespace

TEST_CASE("point deltas: gauges stay, totals become what they have risen by") {
  PointDeltas deltas;
  const auto first =
      deltas.since_last({point("c", Kind::Counter, whole_value(7)), point("g", Kind::Gauge, 0.5)});
  REQUIRE(first.size() == 1);
  CHECK(first[0].value == Value(0.5));
  const auto second = deltas.since_last({point("c", Kind::Counter, whole_value(10)),
                                         point("c", Kind::Counter, whole_value(4), "b"),
                                         point("u", Kind::UpDown, 1.0)});
  REQUIRE(second.size() == 1);
  CHECK(second[0].value == whole_value(3));
  const auto third =
      deltas.since_last({point("c", Kind::Counter, whole_value(10)),      // no more
                         point("c", Kind::Counter, whole_value(1), "b"),  // began anew
                         point("u", Kind::UpDown, 0.25)});
  REQUIRE(third.size() == 1);
  CHECK(third[0].value == Value(-0.75));
  CHECK(deltas.since_last({point("c", Kind::Counter, whole_value(2), "b")}).at(0).value ==
        whole_value(1));
}
