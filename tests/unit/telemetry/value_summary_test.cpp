// SPDX-License-Identifier: Apache-2.0
#include "telemetry/windows.hpp"

#include <doctest/doctest.h>

using namespace elastrun::telemetry;

namespace {

template <class T>
Summary<T> summary_of(std::initializer_list<T> values) {
  Summary<T> summary;
  summary.sketch.emplace();
  for (const T value : values) summary.add(value);
  return summary;
}

constexpr auto kMost = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("summary: the seven aggregations, in the values' type") {
  const auto ints = summary_of<std::int64_t>({0, 5, -5, -6, 9, 2});
  CHECK(ints.get(Aggregation::Max) == Value(std::int64_t{9}));
  CHECK(ints.get(Aggregation::Min) == Value(std::int64_t{-6}));
  CHECK(ints.get(Aggregation::Sum) == Value(std::int64_t{5}));
  CHECK(ints.get(Aggregation::Mean) == Value(std::int64_t{0}));
  CHECK(ints.get(Aggregation::Last) == Value(std::int64_t{2}));
  CHECK(ints.get(Aggregation::Count) == Value(std::int64_t{6}));
  CHECK(ints.get(Aggregation::None) == Value());
  CHECK(summary_of<double>({5, 6}).get(Aggregation::Mean) == Value(5.5));
}

TEST_CASE("summary: D6: the mean of integers is cut towards zero") {
  CHECK(summary_of<std::int64_t>({1, 2}).get(Aggregation::Mean) == Value(std::int64_t{1}));
  CHECK(summary_of<std::int64_t>({-1, -2}).get(Aggregation::Mean) == Value(std::int64_t{-1}));
}

TEST_CASE("summary: D8: the first value decides about the smallest and the largest") {
  const auto low = summary_of<std::int64_t>({-7}), high = summary_of<std::int64_t>({7});
  CHECK(low.get(Aggregation::Max) == Value(std::int64_t{-7}));
  CHECK(high.get(Aggregation::Min) == Value(std::int64_t{7}));
}

TEST_CASE("summary: without values numbers are 0, and quantiles are null") {
  const auto none = summary_of<double>({});
  for (const auto one : {Aggregation::Mean, Aggregation::Sum, Aggregation::Min, Aggregation::Max,
                         Aggregation::Stddev}) {
    CHECK(none.get(one) == Value(0.0));
  }
  CHECK(none.get(Aggregation::P99) == Value());
}

TEST_CASE("summary: S7: a sum of integers stops at the end, and NaN spoils nothing") {
  CHECK(summary_of<std::int64_t>({kMost, 1}).sum == kMost);
  CHECK(summary_of<std::int64_t>({-kMost, -kMost}).sum == -kMost - 1);
  const auto odd = summary_of<double>({1, std::nan(""), -HUGE_VAL, 3});
  CHECK(odd.get(Aggregation::Sum) == Value(4.0));
  CHECK(odd.get(Aggregation::Count) == Value(std::int64_t{2}));
  CHECK(odd.not_finite == 2);
}

TEST_CASE("summary: the standard deviation holds far from zero, and over merged parts") {
  const double far = 1e9;
  auto whole = summary_of<double>({far + 4, far + 7, far + 13, far + 16});
  CHECK(std::get<double>(whole.get(Aggregation::Stddev)) == doctest::Approx(std::sqrt(22.5)));
  auto parts = summary_of<double>({far + 4});
  parts.merge(summary_of<double>({}));
  parts.merge(summary_of<double>({far + 7, far + 13, far + 16}));
  CHECK(parts.stddev() == doctest::Approx(std::sqrt(22.5)));
  CHECK(parts.sum == whole.sum);
  CHECK(parts.min == far + 4);
  CHECK(parts.last == far + 16);
  CHECK(parts.sketch == whole.sketch);
  CHECK(summary_of<double>({3}).stddev() == 0);
}

TEST_CASE("summary: a quantile is never outside of what was seen") {
  const auto same = summary_of<double>({60, 60, 60});
  CHECK(same.get(Aggregation::P50) == Value(60.0));
  CHECK(same.get(Aggregation::P999) == Value(60.0));
}

TEST_CASE("aggregation: names and numbers are torch.monitor's") {
  const Aggregations all{Aggregation::Mean, Aggregation::P99, Aggregation::Last};
  CHECK(all.list() == std::vector{Aggregation::Last, Aggregation::Mean, Aggregation::P99});
  CHECK(all.need_sketch());
  CHECK_FALSE(Aggregations{Aggregation::Stddev, Aggregation::None}.need_sketch());
  CHECK(Aggregations{Aggregation::None}.empty());
  CHECK(to_text(Aggregation::Min) == "min");
  CHECK(static_cast<int>(Aggregation::Min) == 6);
}
