// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/bucket_index.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace elastrun::telemetry {

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
