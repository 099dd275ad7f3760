// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::worker {
/// The scale of new sketches: 2^5 buckets for each doubling, so a bucket's upper bound is 2.19 %
/// above its lower one.
constexpr int kSketchScale = 5;

namespace detail {
constexpr int kMantissaBits = 52;

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
inline constexpr std::array<std::uint8_t, 64> kBucketStart = [] {
  std::array<std::uint8_t, 64> start{};
  for (std::uint64_t top = 0; top < start.size(); ++top) {
    std::uint8_t bucket = 0;
    while (kBounds[bucket + 1u] < top << (kMantissaBits - 6)) ++bucket;
    start[top] = bucket;
  }
  return start;
}();
}  // namespace detail

/// The bucket of a positive, finite value at kSketchScale: bucket i holds (b^i, b^(i+1)] with
/// b = 2^(1/32). By table from the bits of the value, without a logarithm.
inline int bucket_of(double value) {
  constexpr int kBits = detail::kMantissaBits;
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  int exponent = static_cast<int>(bits >> kBits);
  if (exponent == 0) {  // a subnormal number has no leading one
    const double scaled = value * 0x1p64;
    std::memcpy(&bits, &scaled, sizeof bits);
    exponent = static_cast<int>(bits >> kBits) - 64;
  }
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << kBits) - 1);
  const int begin = detail::kBucketStart[mantissa >> (kBits - 6)];
  const int beyond = mantissa > detail::kBounds[static_cast<std::size_t>(begin) + 1] ? 1 : 0;
  return 32 * (exponent - 1023) + begin + beyond - (mantissa == 0 ? 1 : 0);
}

/// b^i for b = 2^(2^-scale): the bound below bucket i. `scale`: kSketchScale at most.
inline double bucket_bound(int index, int scale = kSketchScale) {
  // A bound of each coarser scale is one of the finest: b^i there is b^(i * 2^(5 - scale)).
  const int finest = index * (1 << (kSketchScale - scale));
  const auto mantissa = detail::kBounds[static_cast<std::size_t>(finest & 31)];
  return std::ldexp(1 + static_cast<double>(mantissa) * 0x1p-52, finest >> kSketchScale);
}

/// Counts of buckets that lie side by side: counts[k] belongs to bucket `offset` + k.
struct Buckets {
  int offset = 0;
  std::vector<std::uint64_t> counts{};

  std::uint64_t total() const {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
  void add(int index, std::uint64_t count = 1) {
    if (count == 0) return;
    if (counts.empty()) offset = index;
    if (index < offset) {
      counts.insert(counts.begin(), static_cast<std::size_t>(offset - index), 0);
      offset = index;
    }
    const auto place = static_cast<std::size_t>(index - offset);
    if (place >= counts.size()) counts.resize(place + 1);
    counts[place] += count;
  }
  /// Calls `tell(index, count)` for those that have values, from the first one.
  template <class Tell>
  void each(Tell tell) const {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) tell(offset + static_cast<int>(i), counts[i]);
    }
  }
  void merge(const Buckets& other) {
    other.each([this](int index, std::uint64_t count) { add(index, count); });
  }
  /// Joins pairs of neighbours: the same counts at half the resolution. Exactly two buckets make
  /// one of the next scale (OpenTelemetry, perfect subsetting); the shift rounds down below zero.
  void halve() {
    Buckets coarse;
    each([&](int index, std::uint64_t count) { coarse.add(index >> 1, count); });
    *this = std::move(coarse);
  }
  bool operator==(const Buckets& other) const {
    return offset == other.offset && counts == other.counts;
  }
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
  void add(double value, std::uint64_t count = 1) {
    if (!std::isfinite(value)) return;
    // Zero is in no bucket; OpenTelemetry's exponential histograms count it apart, too.
    if (value == 0) return add_zeros(count);
    constexpr int kLast = 1024 * 32 - 2;  // the end of the one above is no double any more
    const int index = std::min(bucket_of(std::fabs(value)), kLast);
    add_bucket(index >> (kSketchScale - scale_), count, value < 0);
  }
  /// Counts of bucket `index` (at this scale) of positive or negative values.
  void add_bucket(int index, std::uint64_t count, bool negative) {
    (negative ? negative_ : positive_).add(index, count);
  }
  void add_zeros(std::uint64_t count) { zeros_ += count; }
  /// The coarser scale of both wins.
  void merge(Sketch other) {
    downscale(other.scale_);
    other.downscale(scale_);
    zeros_ += other.zeros_;
    positive_.merge(other.positive_);
    negative_.merge(other.negative_);
  }
  /// To a coarser scale; a finer one changes nothing.
  void downscale(int scale) {
    for (; scale_ > scale; --scale_) {
      positive_.halve();
      negative_.halve();
    }
  }

  std::uint64_t count() const { return zeros_ + positive_.total() + negative_.total(); }
  /// The value of which a share of `q` (0 to 1) is not above it: that of rank ceil(q * count),
  /// at least the first. Nothing for an empty sketch.
  std::optional<double> quantile(double q) const {
    const std::uint64_t all = count();
    if (all == 0) return std::nullopt;
    const double wanted = std::clamp(q, 0.0, 1.0) * static_cast<double>(all);
    // Rounded up by hand: std::ceil would bring libm into the agent.
    auto rank = static_cast<std::uint64_t>(wanted);
    if (static_cast<double>(rank) < wanted) ++rank;
    rank = std::clamp<std::uint64_t>(rank, 1, all);
    std::optional<double> found;
    each([&](int sign, int index, std::uint64_t here) {
      if (!found && rank <= here) found = sign * middle(index);
      rank -= here;
    });
    return found;
  }
  /// How many values are not above `bound`. A bucket that the bound cuts counts as a whole, by its
  /// middle.
  std::uint64_t count_up_to(double bound) const {
    std::uint64_t below = 0;
    each([&](int sign, int index, std::uint64_t here) {
      if (sign * middle(index) <= bound) below += here;
    });
    return below;
  }
  /// The end of each bucket that has values, away from zero, and how many; from the lowest.
  std::vector<std::pair<double, std::uint64_t>> buckets() const {
    std::vector<std::pair<double, std::uint64_t>> found;
    each([&](int sign, int index, std::uint64_t here) {
      found.emplace_back(sign * bucket_bound(index + 1, scale_), here);
    });
    return found;
  }
  /// As members of a packet of type histogram, with a comma before each. Where the buckets are too
  /// many, or too far apart, each two become one, and again.
  std::string members() const {
    Sketch sent = *this;
    while (sent.scale_ > -8 && (is_large(sent.positive_) || is_large(sent.negative_))) {
      sent.downscale(sent.scale_ - 1);
    }
    return R"(,"scale":)" + std::to_string(sent.scale_) + R"(,"zeros":)" + std::to_string(zeros_) +
           R"(,"buckets":)" + list(sent.positive_) + R"(,"negative":)" + list(sent.negative_);
  }

  int scale() const { return scale_; }
  std::uint64_t zeros() const { return zeros_; }
  const Buckets& positive() const { return positive_; }
  const Buckets& negative() const { return negative_; }
  bool operator==(const Sketch& other) const {
    return scale_ == other.scale_ && zeros_ == other.zeros_ && positive_ == other.positive_ &&
           negative_ == other.negative_;
  }

 private:
  /// Calls `tell(sign, index, count)` for each bucket that has values, from the lowest value on; of
  /// zeros the sign is 0.
  template <class Tell>
  void each(Tell tell) const {
    for (std::size_t i = negative_.counts.size(); i-- > 0;) {
      if (negative_.counts[i] == 0) continue;
      tell(-1, negative_.offset + static_cast<int>(i), negative_.counts[i]);
    }
    if (zeros_ > 0) tell(0, 0, zeros_);
    positive_.each([&](int index, std::uint64_t here) { tell(1, index, here); });
  }
  /// Equally far from both bounds, relative to them.
  double middle(int index) const {
    const double below = bucket_bound(index, scale_), base = bucket_bound(1, scale_);
    return 2 * below * base / (base + 1);
  }
  static bool is_large(const Buckets& buckets) {
    std::size_t used = 0;
    buckets.each([&](int, std::uint64_t) { ++used; });
    return used > 200 || buckets.counts.size() > 640;
  }
  static std::string list(const Buckets& buckets) {
    std::string text = "[";
    buckets.each([&](int index, std::uint64_t count) {
      if (text.size() > 1) text += ',';
      text += '[' + std::to_string(index) + ',' + std::to_string(count) + ']';
    });
    return text + ']';
  }

  int scale_ = kSketchScale;
  std::uint64_t zeros_ = 0;
  Buckets positive_, negative_;
};

/// How the values of a window become one number. The standard deviation is that of all values, not
/// of a sample of them; percentiles and the histogram come from a Sketch.
enum class Aggregation {
  Value,
  Mean,
  Count,
  Sum,
  Max,
  Min,
  Stddev,
  P50,
  P90,
  P95,
  P99,
  P999,
  Histogram
};
/// Their names, in the order of the enumeration.
inline constexpr std::array<std::string_view, 13> kAggregations = {
    "value", "mean", "count", "sum", "max",  "min",      "stddev",
    "p50",   "p90",  "p95",   "p99", "p999", "histogram"};
inline std::string_view to_text(Aggregation one) {
  return kAggregations[static_cast<std::size_t>(one)];
}
/// Whether it takes a Sketch: those from P50 on, in the order of the enumeration.
inline bool needs_sketch(Aggregation one) {
  return one >= Aggregation::P50;
}

/// By Newton's method; 0 for what is not above 0. std::sqrt sets errno, for which the archive of
/// libm wants a private name of the very libc that it came with (elastrun-design(7)).
inline double square_root(double x) {
  if (!(x > 0)) return 0;
  if (!std::isfinite(x)) return x;
  int exponent = 0;
  const double part = std::frexp(x, &exponent);
  double root = std::ldexp(part, exponent / 2);  // at most twice as much, or half
  // Four steps have all digits, ten are none too many for what begins at a quarter.
  for (int i = 0; i < 10; ++i) root = (root + x / root) / 2;
  return root;
}

/// The values of one stretch, summed up. Those of parts merge into that of the whole. NaN and
/// infinities are counted apart and spoil nothing.
struct Summary {
  std::uint64_t count = 0, not_finite = 0;
  double last = 0, sum = 0, min = 0, max = 0;
  std::optional<Sketch> sketch{};  // where percentiles are asked for

  void add(double value) {
    if (!std::isfinite(value)) {
      ++not_finite;
      return;
    }
    if (count == 0) {
      min = max = pivot_ = value;
    } else {
      min = value < min ? value : min;
      max = value > max ? value : max;
    }
    // Distances from the first value: no division for each, and digits stay far from zero.
    const double away = value - pivot_;
    away_ += away;
    squares_ += away * away;
    ++count;
    sum += value;
    last = value;
    if (sketch) sketch->add(value);
  }
  void merge(const Summary& other) {
    not_finite += other.not_finite;
    if (other.sketch) {
      if (!sketch) sketch.emplace();
      sketch->merge(*other.sketch);
    }
    if (other.count == 0) return;
    if (count == 0) pivot_ = other.pivot_;
    const double shift = other.pivot_ - pivot_, many = static_cast<double>(other.count);
    away_ += other.away_ + many * shift;
    squares_ += other.squares_ + 2 * shift * other.away_ + many * shift * shift;
    min = count == 0 ? other.min : std::min(min, other.min);
    max = count == 0 ? other.max : std::max(max, other.max);
    sum += other.sum;
    count += other.count;
    last = other.last;
  }
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
  double stddev() const {
    const auto many = static_cast<double>(count);
    return count == 0 ? 0 : square_root((squares_ - away_ * away_ / many) / many);
  }
  /// 0 without values. That of Histogram is how many there were.
  double of(Aggregation aggregation) const {
    constexpr double kRanks[] = {0.5, 0.9, 0.95, 0.99, 0.999};
    switch (aggregation) {
      case Aggregation::Value:
        return last;
      case Aggregation::Mean:
        return mean();
      case Aggregation::Sum:
        return sum;
      case Aggregation::Max:
        return max;
      case Aggregation::Min:
        return min;
      case Aggregation::Stddev:
        return stddev();
      case Aggregation::Count:
      case Aggregation::Histogram:
        return static_cast<double>(count);
      default:
        return quantile(kRanks[static_cast<int>(aggregation) - static_cast<int>(Aggregation::P50)]);
    }
  }
  /// A bucket may be wider than its values: bounded by them.
  double quantile(double rank) const {
    const auto found = sketch ? sketch->quantile(rank) : std::nullopt;
    return found ? std::clamp(*found, min, max) : 0;
  }

 private:
  double pivot_ = 0, away_ = 0, squares_ = 0;
};

}  // namespace elastrun::worker
