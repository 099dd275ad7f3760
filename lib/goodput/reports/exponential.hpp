// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

/// Exponential and logarithm without libm: the release program needs libc alone, and the archive of
/// libm has these only for programs that are static as a whole.
namespace elastrun::goodput {

/// e^x - 1, also where that is small, to 1e-12 of it; infinite beyond the range of double.
constexpr double exp_minus_1(double x) {
  if (x > 709.78) return std::numeric_limits<double>::infinity();
  if (x < -40) return -1;
  int halved = 0;
  for (; x > 0.25 || x < -0.25; ++halved) x /= 2;
  double sum = 0, term = 1;
  for (int i = 1; i < 16; ++i) sum += term *= x / i;
  for (; halved > 0; --halved) sum *= sum + 2;  // e^2y - 1 = (e^y - 1) (e^y + 1)
  return sum;
}

/// Of what is above 0, to 1e-15 or that part of it; minus infinity for anything else.
constexpr double natural_log(double x) {
  constexpr double kLog2 = 0.693147180559945309417232121458;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(x > 0)) return -kInfinity;
  if (x == kInfinity) return kInfinity;
  int twos = 0;
  for (; x > 1.5; ++twos) x /= 2;
  for (; x < 0.75; --twos) x *= 2;
  const double t = (x - 1) / (x + 1);  // log x = 2 artanh t, and t is 0.2 at most
  double sum = 0, power = t;
  for (int i = 1; i < 27; i += 2, power *= t * t) sum += power / i;
  return twos * kLog2 + 2 * sum;
}

}  // namespace elastrun::goodput
