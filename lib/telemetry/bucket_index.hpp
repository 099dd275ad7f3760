// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace elastrun::telemetry {

/// The scale of new sketches: 2^5 buckets for each doubling, so a bucket's upper bound is 2.19 %
/// above its lower one.
constexpr int kSketchScale = 5;

namespace buckets {

constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMantissa = (std::uint64_t{1} << kMantissaBits) - 1;

// floor((2^(k/32) - 1) * 2^52): a mantissa above it lies beyond the k-th bound of its octave.
inline constexpr std::array<std::uint64_t, 34> kBounds = {
    0x00000000000000, 0x0059b0d3158574, 0x00b5586cf9890f, 0x011301d0125b50, 0x0172b83c7d517a,
    0x01d4873168b9aa, 0x02387a6e756238, 0x029e9df51fdee1, 0x0306fe0a31b715, 0x0371a7373aa9ca,
    0x03dea64c123422, 0x044e086061892d, 0x04bfdad5362a27, 0x05342b569d4f81, 0x05ab07dd485429,
    0x06247eb03a5584, 0x06a09e667f3bcc, 0x071f75e8ec5f73, 0x07a11473eb0186, 0x082589994cce12,
    0x08ace5422aa0db, 0x093737b0cdc5e4, 0x09c49182a3f090, 0x0a5503b23e255c, 0x0ae89f995ad3ad,
    0x0b7f76f2fb5e46, 0x0c199bdd85529c, 0x0cb720dcef9069, 0x0d5818dcfba487, 0x0dfc97337b9b5e,
    0x0ea4afa2a490d9, 0x0f50765b6e4540, 0x10000000000000, 0x10b361a62b0ae8};

// For each value of a mantissa's top six bits the bucket in which such mantissas begin. A bucket is
// wider than a 64th of an octave, so one more comparison finds the right one.
inline constexpr std::array<std::uint8_t, 64> kStart = [] {
  std::array<std::uint8_t, 64> start{};
  for (std::uint64_t top = 0; top < start.size(); ++top) {
    std::uint8_t bucket = 0;
    while (kBounds[bucket + 1u] < top << (kMantissaBits - 6)) ++bucket;
    start[top] = bucket;
  }
  return start;
}();

}  // namespace buckets

/// The bucket of a positive, finite value at kSketchScale: bucket i holds (b^i, b^(i+1)] with
/// b = 2^(1/32). By table from the bits of the value, without a logarithm.
inline int bucket_of(double value) noexcept {
  using namespace buckets;
  auto bits = std::bit_cast<std::uint64_t>(value);
  int exponent = static_cast<int>(bits >> kMantissaBits);
  if (exponent == 0) [[unlikely]] {  // a subnormal number has no leading one
    bits = std::bit_cast<std::uint64_t>(value * 0x1p64);
    exponent = static_cast<int>(bits >> kMantissaBits) - 64;
  }
  const std::uint64_t mantissa = bits & kMantissa;
  const int begin = kStart[mantissa >> (kMantissaBits - 6)];
  const int beyond = mantissa > kBounds[static_cast<std::size_t>(begin) + 1] ? 1 : 0;
  return 32 * (exponent - 1023) + begin + beyond - (mantissa == 0 ? 1 : 0);
}

}  // namespace elastrun::telemetry
