// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

/// Powers and roots without libm: the release program needs libc alone, so that one file runs on
/// every node.
namespace elastrun::telemetry {

/// 2^n: exact; infinite above the range of double, 0 below it.
constexpr double power_of_two(int n) {
  if (n > 1023) return std::numeric_limits<double>::infinity();
  if (n < -1074) return 0;
  if (n < -1022) return std::bit_cast<double>(std::uint64_t{1} << (n + 1074));
  return std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
}

/// By Newton's method, to the last digit or two; 0 for what is not above 0.
constexpr long double square_root(double x) {
  if (!(x > 0)) return 0;
  if (x > std::numeric_limits<double>::max()) return x;
  long double root =
      std::bit_cast<double>((std::bit_cast<std::uint64_t>(x) >> 1) + (std::uint64_t{1023} << 51));
  for (int i = 0; i < 40; ++i) {
    const long double next = (root + x / root) / 2;
    if (next == root) break;
    root = next;
  }
  return root;
}

/// 2^(index / 2^scale), for scales from 0 to 20.
constexpr double root_power_of_two(int index, int scale) {
  constexpr auto kRoots = [] {
    std::array<long double, 20> roots{};  // 2^(1/2), 2^(1/4), ...
    long double square = 2;
    for (long double& root : roots) {
      root = square_root(static_cast<double>(square));
      for (int i = 0; i < 4; ++i) root = (root + square / root) / 2;
      square = root;
    }
    return roots;
  }();
  long double product = 1;
  for (int k = 1; k <= scale; ++k) {
    if (((index >> (scale - k)) & 1) != 0) product *= kRoots[static_cast<std::size_t>(k - 1)];
  }
  return static_cast<double>(product * power_of_two(index >> scale));
}

}  // namespace elastrun::telemetry
