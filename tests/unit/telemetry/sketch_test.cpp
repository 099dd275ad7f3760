// SPDX-License-Identifier: Apache-2.0
#include "worker/summary.hpp"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <limits>
#include <random>

using namespace elastrun::worker;

namespace {

/// (b - 1) / (b + 1) for b = 2^(1/32), and a little for the arithmetic.
constexpr double kBound = 0.010832;

using Random = std::mt19937_64;

std::vector<double> values_of(const std::function<double(Random&)>& draw) {
  Random random(7);
  std::vector<double> values(20'000);
  std::generate(values.begin(), values.end(), [&] { return draw(random); });
  return values;
}

double exact(std::vector<double> values, double q) {
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
  std::sort(values.begin(), values.end());
  return values[std::max<std::size_t>(rank, 1) - 1];
}

Sketch sketch_of(const std::vector<double>& values) {
  Sketch sketch;
  for (const double value : values) sketch.add(value);
  return sketch;
}

Summary summary_of(std::initializer_list<double> values) {
  Summary summary;
  summary.sketch.emplace();
  for (const double value : values) summary.add(value);
  return summary;
}

}  // namespace

TEST_CASE("sketch: roots and bounds are those of libm") {
  for (double x : {5e-324, 1e-310, 1e-30, 0.25, 2.0, 22.5, 1e30, 1.7e308}) {
    CHECK(square_root(x) == doctest::Approx(std::sqrt(x)).epsilon(1e-15));
  }
  CHECK(square_root(0) == 0);
  CHECK(square_root(-1) == 0);
  CHECK(square_root(HUGE_VAL) == HUGE_VAL);
  for (int scale : {-8, -1, 0, 1, kSketchScale}) {
    for (int index = -40'000; index <= 40'000; index += 7) {
      const double right = std::exp2(std::ldexp(index, -scale)), ours = bucket_bound(index, scale);
      CHECK((ours == right || ours == doctest::Approx(right).epsilon(1e-15)));
    }
  }
}

TEST_CASE("sketch: the table finds the bucket that the logarithm finds") {
  const std::pair<double, int> known[] = {{1.0, -1},   {1.0000001, 0},  {1.5, 18},
                                          {2.0, 31},   {2.0000001, 32}, {3.75, 61},
                                          {60.0, 189}, {0.001, -319},   {1e-9, -957}};
  for (const auto& [value, index] : known) {
    CAPTURE(value);
    CHECK(bucket_of(value) == index);
  }
  Random random(1);
  std::uniform_real_distribution<double> exponent(-1000, 1000);
  for (int i = 0; i < 100'000; ++i) {
    const double value = std::exp2(exponent(random));
    const int index = bucket_of(value);
    CHECK(bucket_bound(index) <= value * (1 + 1e-12));
    CHECK(value <= bucket_bound(index + 1) * (1 + 1e-12));
  }
}

TEST_CASE("sketch: powers of two are upper bounds of their buckets, down to the smallest number") {
  for (int e = -1074; e < 1024; ++e) {
    CAPTURE(e);
    CHECK(bucket_of(std::ldexp(1.0, e)) == 32 * e - 1);
  }
  CHECK(bucket_of(std::numeric_limits<double>::max()) == 32 * 1024 - 1);
}

TEST_CASE("sketch: quantiles of five distributions are within the bound") {
  const std::function<double(Random&)> draws[] = {
      std::uniform_real_distribution<double>(0, 1), std::exponential_distribution<double>(3),
      std::lognormal_distribution<double>(0, 2), std::normal_distribution<double>(0, 50),
      [](Random& random) {
        return std::pow(std::uniform_real_distribution<double>(1e-9, 1)(random),
                        -1 / 1.1);  // Pareto
      }};
  for (const auto& draw : draws) {
    const auto values = values_of(draw);
    const auto sketch = sketch_of(values);
    CHECK(sketch.count() == values.size());
    for (const double q : {0.0, 0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0}) {
      CAPTURE(q);
      const double right = exact(values, q);
      CHECK(std::abs(*sketch.quantile(q) - right) <= kBound * std::abs(right));
    }
  }
}

TEST_CASE("sketch: parts add up to the whole") {
  const auto values = values_of(std::normal_distribution<double>(1, 5));
  Sketch sum = sketch_of({values.begin(), values.begin() + 7000});
  sum.merge(sketch_of({values.begin() + 7000, values.end()}));
  CHECK(sum == sketch_of(values));
}

TEST_CASE("sketch: a coarser scale keeps the counts and doubles the error") {
  const auto values = values_of(std::exponential_distribution<double>(1));
  Sketch coarse = sketch_of(values), mixed = sketch_of(values);
  coarse.downscale(3);
  CHECK(coarse.count() == values.size());
  const double right = exact(values, 0.9), base = std::exp2(1.0 / 8);
  CHECK(std::abs(*coarse.quantile(0.9) - right) <= (base - 1) / (base + 1) * right * 1.0001);
  mixed.merge(coarse);
  CHECK(mixed.scale() == 3);
  CHECK(mixed.count() == 2 * values.size());
  coarse.add(1.5);
  CHECK(coarse.count() == values.size() + 1);
}

TEST_CASE("sketch: zeros, negative values and what is not finite") {
  Sketch sketch;
  CHECK_FALSE(sketch.quantile(0.5));
  for (const double value : {-4.0, 0.0, 0.0, 8.0}) sketch.add(value);
  sketch.add(std::nan(""));
  sketch.add(HUGE_VAL);
  CHECK(sketch.count() == 4);
  CHECK(*sketch.quantile(0) == doctest::Approx(-4).epsilon(kBound));
  CHECK(*sketch.quantile(0.5) == 0);
  CHECK(*sketch.quantile(1) == doctest::Approx(8).epsilon(kBound));
  CHECK(sketch.count_up_to(-5) == 0);
  CHECK(sketch.count_up_to(-1) == 1);
  CHECK(sketch.count_up_to(0) == 3);
  CHECK(sketch.count_up_to(100) == 4);
}

TEST_CASE("summary: without values all is 0; NaN and infinities are counted apart") {
  const auto none = summary_of({});
  for (std::size_t i = 0; i < kAggregations.size(); ++i) {
    CHECK(none.of(static_cast<Aggregation>(i)) == 0);
  }
  const auto odd = summary_of({1, std::nan(""), -HUGE_VAL, 3});
  CHECK(odd.of(Aggregation::Sum) == 4);
  CHECK(odd.of(Aggregation::Count) == 2);
  CHECK(odd.not_finite == 2);
  CHECK(to_text(Aggregation::Min) == "min");
}

TEST_CASE("summary: the standard deviation holds far from zero, and over merged parts") {
  const double far = 1e9;
  const auto whole = summary_of({far + 4, far + 7, far + 13, far + 16});
  CHECK(whole.stddev() == doctest::Approx(std::sqrt(22.5)));
  auto parts = summary_of({far + 4});
  parts.merge(summary_of({}));
  parts.merge(summary_of({far + 7, far + 13, far + 16}));
  CHECK(parts.stddev() == doctest::Approx(std::sqrt(22.5)));
  CHECK(parts.sum == whole.sum);
  CHECK(parts.min == far + 4);
  CHECK(parts.last == far + 16);
  CHECK(parts.sketch == whole.sketch);
  CHECK(summary_of({3}).stddev() == 0);
  Summary many;
  for (int i = 0; i < 1'000'000; ++i) many.add(i == 0 ? -1e6 : i % 2);  // an odd first value
  CHECK(many.stddev() == doctest::Approx(1000.0005).epsilon(1e-6));
}

TEST_CASE("summary: a quantile is never outside of what was seen") {
  const auto same = summary_of({60, 60, 60});
  CHECK(same.of(Aggregation::P50) == 60);
  CHECK(same.of(Aggregation::P999) == 60);
}
