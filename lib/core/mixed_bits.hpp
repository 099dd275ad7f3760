// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace elastrun {

/// A bijection that spreads neighbours: the last step of SplitMix64 (G. Steele et al., OOPSLA
/// 2014).
constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace elastrun
