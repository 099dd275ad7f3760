// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sketch.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace elastrun::telemetry {
namespace {

int half(int index) {
  return index >> 1;  // rounds down for negative numbers, too
}

}  // namespace

double square_root(double x) {
  if (!(x > 0)) return 0;
  if (!std::isfinite(x)) return x;
  int exponent = 0;
  const double part = std::frexp(x, &exponent);
  double root = std::ldexp(part, exponent / 2);  // at most twice as much, or half
  // Four steps have all digits, ten are none too many for what begins at a quarter.
  for (int i = 0; i < 10; ++i) root = (root + x / root) / 2;
  return root;
}

double bucket_bound(int index, int scale) {
  // A bound of each coarser scale is one of the finest: b^i there is b^(i * 2^(5 - scale)).
  const int finest = index << (kSketchScale - scale);
  const auto mantissa = buckets::kBounds[static_cast<std::size_t>(finest & 31)];
  const double bound = 1 + static_cast<double>(mantissa) * 0x1p-52;
  return std::ldexp(bound, finest >> kSketchScale);
}

std::uint64_t Buckets::total() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

void Buckets::add(int index, std::uint64_t count) {
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

void Buckets::merge(const Buckets& other) {
  const int last = other.offset + static_cast<int>(other.counts.size()) - 1;
  // The last one first: the counts grow once, to their full length.
  if (!other.counts.empty()) add(last, other.counts.back());
  for (int i = other.offset; i < last; ++i) {
    add(i, other.counts[static_cast<std::size_t>(i - other.offset)]);
  }
}

void Buckets::halve() {
  Buckets coarse;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    // One bucket of the next scale is exactly two of this one (OpenTelemetry, perfect subsetting),
    // so nothing is lost but resolution.
    coarse.add(half(offset + static_cast<int>(i)), counts[i]);
  }
  *this = std::move(coarse);
}

void Sketch::add(double value, std::uint64_t count) {
  // No bucket can hold it, and log2 of it has no index.
  if (!std::isfinite(value)) return;
  // Neither has zero, which OpenTelemetry's exponential histograms count apart, too.
  if (value == 0) {
    zeros_ += count;
    return;
  }
  // Each scale down halves the index, see halve(); the shift rounds down below zero as well.
  const int index = bucket_of(std::abs(value)) >> (kSketchScale - scale_);
  add_bucket(index, count, value < 0);
}

void Sketch::add_bucket(int index, std::uint64_t count, bool negative) {
  (negative ? negative_ : positive_).add(index, count);
}

void Sketch::merge(Sketch other) {
  downscale(other.scale_);
  other.downscale(scale_);
  zeros_ += other.zeros_;
  positive_.merge(other.positive_);
  negative_.merge(other.negative_);
}

void Sketch::downscale(int scale) {
  for (; scale_ > scale; --scale_) {
    positive_.halve();
    negative_.halve();
  }
}

std::uint64_t Sketch::count() const {
  return zeros_ + positive_.total() + negative_.total();
}

double Sketch::middle(int index) const {
  const double below = bucket_bound(index, scale_), base = bucket_bound(1, scale_);
  return 2 * below * base / (base + 1);  // equally far from both bounds, relative to them
}

std::optional<double> Sketch::quantile(double q) const {
  const std::uint64_t all = count();
  if (all == 0) return std::nullopt;
  // Rounded up by hand: std::ceil would bring libm into both programs.
  const double wanted = std::clamp(q, 0.0, 1.0) * static_cast<double>(all);
  auto rank = static_cast<std::uint64_t>(wanted);
  if (static_cast<double>(rank) < wanted) ++rank;
  rank = std::clamp<std::uint64_t>(rank, 1, all);
  for (std::size_t i = negative_.counts.size(); i-- > 0;) {
    if (rank <= negative_.counts[i]) return -middle(negative_.offset + static_cast<int>(i));
    rank -= negative_.counts[i];
  }
  if (rank <= zeros_) return 0.0;
  rank -= zeros_;
  for (std::size_t i = 0; i < positive_.counts.size(); ++i) {
    if (rank <= positive_.counts[i]) return middle(positive_.offset + static_cast<int>(i));
    rank -= positive_.counts[i];
  }
  return std::nullopt;
}

std::uint64_t Sketch::count_up_to(double bound) const {
  std::uint64_t below = bound >= 0 ? zeros_ : 0;
  for (std::size_t i = 0; i < positive_.counts.size(); ++i) {
    const int index = positive_.offset + static_cast<int>(i);
    // A bucket that the bound cuts counts as a whole, by its middle.
    if (middle(index) <= bound) below += positive_.counts[i];
  }
  for (std::size_t i = 0; i < negative_.counts.size(); ++i) {
    const int index = negative_.offset + static_cast<int>(i);
    if (-middle(index) <= bound) below += negative_.counts[i];
  }
  return below;
}

}  // namespace elastrun::telemetry
