// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

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

/// By Newton's method; 0 for what is not above 0. std::sqrt sets errno, for which the archive of
/// libm wants a private name of the very libc that it came with (elastrun-design(7)).
double square_root(double x);

/// b^i for b = 2^(2^-scale): the bound below bucket i. `scale`: kSketchScale at most.
double bucket_bound(int index, int scale = kSketchScale);

/// Counts of buckets that lie side by side: counts[k] belongs to bucket `offset` + k.
struct Buckets {
  int offset = 0;
  std::vector<std::uint64_t> counts;

  std::uint64_t total() const;
  void add(int index, std::uint64_t count = 1);
  void merge(const Buckets& other);
  /// Joins pairs of neighbours: the same counts at half the resolution.
  void halve();
  bool operator==(const Buckets&) const = default;
};

/// The distribution of values as a histogram with exponential bounds, as of OpenTelemetry's
/// ExponentialHistogram and Prometheus' native histograms (the family of DDSketch: C. Masson et
/// al., VLDB 2019). Sketches of one scale add up exactly, in any order.
///
/// quantile() is within (b - 1) / (b + 1) of the value asked for, with b = 2^(2^-scale): 1.09 % at
/// scale 5, doubled by each downscale. Memory grows with the ratio of the largest to the smallest
/// value: 256 bytes for each doubling at scale 5. NaN and infinities are not taken.
class Sketch {
 public:
  void add(double value, std::uint64_t count = 1);
  /// Counts of bucket `index` (at this scale) of positive or negative values.
  void add_bucket(int index, std::uint64_t count, bool negative);
  void add_zeros(std::uint64_t count) { zeros_ += count; }
  /// The coarser scale of both wins.
  void merge(Sketch other);
  /// To a coarser scale; a finer one changes nothing.
  void downscale(int scale);

  std::uint64_t count() const;
  /// The value of which a share of `q` (0 to 1) is not above it: that of rank ceil(q * count),
  /// at least the first. Nothing for an empty sketch.
  std::optional<double> quantile(double q) const;
  /// How many values are not above `bound`, as whole buckets tell: those that lie below it.
  std::uint64_t count_up_to(double bound) const;

  int scale() const { return scale_; }
  std::uint64_t zeros() const { return zeros_; }
  const Buckets& positive() const { return positive_; }
  const Buckets& negative() const { return negative_; }
  bool operator==(const Sketch&) const = default;

 private:
  double middle(int index) const;

  int scale_ = kSketchScale;
  std::uint64_t zeros_ = 0;
  Buckets positive_, negative_;
};

}  // namespace elastrun::telemetry
