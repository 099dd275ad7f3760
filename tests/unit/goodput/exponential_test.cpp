// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/exponential.hpp"

#include <cmath>
#include <doctest/doctest.h>

using namespace elastrun::goodput;

TEST_CASE("exponential: as the library's, over the whole range") {
  for (double x = 1e-12; x < 700; x *= 1.13) {
    CAPTURE(x);
    CHECK(std::abs(exp_minus_1(x) / std::expm1(x) - 1) < 1e-12);
    CHECK(std::abs(exp_minus_1(-x) / std::expm1(-x) - 1) < 1e-12);
  }
  CHECK(exp_minus_1(0) == 0);
  CHECK(std::isinf(exp_minus_1(710)));
  CHECK(exp_minus_1(-1e300) == -1);
  CHECK(std::isnan(exp_minus_1(NAN)));
}

TEST_CASE("logarithm: as the library's, over the whole range") {
  for (double x = 5e-324; x < 1e308; x *= 1.7) {
    CAPTURE(x);
    CHECK(std::abs(natural_log(x) - std::log(x)) <= 1e-15 * std::max(1.0, std::abs(std::log(x))));
  }
  CHECK(natural_log(1) == 0);
  CHECK(natural_log(0) == -INFINITY);
  CHECK(natural_log(-1) == -INFINITY);
  CHECK(natural_log(INFINITY) == INFINITY);
  CHECK(natural_log(NAN) == -INFINITY);
}
