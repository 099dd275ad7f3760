// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace elastrun {

/// The last `Most` values of a series. Memory grows to that many and no further.
template <class T, std::size_t Most>
class Ring {
 public:
  void add(T value) {
    if (values_.size() < Most) return values_.push_back(value);
    values_[oldest_] = value;
    oldest_ = (oldest_ + 1) % Most;
  }
  void clear() {
    values_.clear();
    oldest_ = 0;
  }
  std::size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  /// The one that `index` others are not above: of at least so many and one more.
  T nth(std::size_t index) const {
    auto values = values_;
    const auto place = values.begin() + static_cast<std::ptrdiff_t>(index);
    std::ranges::nth_element(values, place);
    return *place;
  }
  /// In any order.
  const std::vector<T>& values() const { return values_; }
  /// The oldest first.
  std::vector<T> in_order() const {
    std::vector<T> values(values_.size());
    std::ranges::rotate_copy(values_, values_.begin() + static_cast<std::ptrdiff_t>(oldest_),
                             values.begin());
    return values;
  }

 private:
  std::vector<T> values_;
  std::size_t oldest_ = 0;  // when full
};

}  // namespace elastrun
