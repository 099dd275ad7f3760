// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::worker {
namespace detail {

/// The values of one stretch as a histogram whose buckets grow by 2^(1/32), as the agent's:
/// quantiles are within 1.09 %.
class Sketch {
 public:
  void add(double value) {
    if (value == 0) {
      ++zeros_;
      return;
    }
    const double index = std::ceil(std::log2(std::fabs(value)) * kBuckets) - 1;
    ++(value < 0 ? negative_ : positive_)[index < kLast ? static_cast<int>(index) : kLast];
  }
  double quantile(double rank) const {
    std::uint64_t all = zeros_;
    for (const auto& [index, count] : positive_) all += count;
    for (const auto& [index, count] : negative_) all += count;
    auto left = static_cast<std::int64_t>(std::ceil(rank * static_cast<double>(all)));
    left = left < 1 ? 1 : left;
    for (auto one = negative_.rbegin(); one != negative_.rend(); ++one) {
      if ((left -= static_cast<std::int64_t>(one->second)) <= 0) return -middle(one->first);
    }
    if ((left -= static_cast<std::int64_t>(zeros_)) <= 0) return 0;
    for (const auto& [index, count] : positive_) {
      if ((left -= static_cast<std::int64_t>(count)) <= 0) return middle(index);
    }
    return 0;
  }
  /// The end of each bucket that has values, away from zero, and how many; from the lowest.
  std::vector<std::pair<double, std::uint64_t>> buckets() const {
    std::vector<std::pair<double, std::uint64_t>> found;
    for (auto one = negative_.rbegin(); one != negative_.rend(); ++one) {
      found.emplace_back(-end_of(one->first), one->second);
    }
    if (zeros_ > 0) found.emplace_back(0, zeros_);
    for (const auto& [index, count] : positive_) found.emplace_back(end_of(index), count);
    return found;
  }
  /// As members of a packet of type histogram, with a comma before each. Where the buckets are too
  /// many, or too far apart, each two become one, and again.
  std::string members() const {
    auto positive = positive_, negative = negative_;
    int scale = 5;
    for (; scale > -8 && (is_large(positive) || is_large(negative)); --scale) {
      positive = halved(positive);
      negative = halved(negative);
    }
    return R"(,"scale":)" + std::to_string(scale) + R"(,"zeros":)" + std::to_string(zeros_) +
           R"(,"buckets":)" + list(positive) + R"(,"negative":)" + list(negative);
  }

 private:
  using Counts = std::map<int, std::uint64_t>;
  static constexpr double kBuckets = 32;
  static constexpr int kLast = 1024 * 32 - 2;  // its end is a double still; also what is beyond
  static double end_of(int index) { return std::exp2((index + 1) / kBuckets); }
  static double middle(int index) { return end_of(index) * (2 / (std::exp2(1 / kBuckets) + 1)); }
  static bool is_large(const Counts& counts) {
    return counts.size() > 200 ||
           (!counts.empty() && counts.rbegin()->first - counts.begin()->first >= 640);
  }
  static Counts halved(const Counts& counts) {
    Counts coarse;
    for (const auto& [index, count] : counts) coarse[index >> 1] += count;
    return coarse;
  }
  static std::string list(const Counts& counts) {
    std::string text = "[";
    for (const auto& [index, count] : counts) {
      if (text.size() > 1) text += ',';
      text += '[' + std::to_string(index) + ',' + std::to_string(count) + ']';
    }
    return text + ']';
  }
  Counts positive_, negative_;
  std::uint64_t zeros_ = 0;
};
}  // namespace detail

}  // namespace elastrun::worker
