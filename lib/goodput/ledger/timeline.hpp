// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "goodput/ledger/bucket.hpp"

#include <array>
#include <vector>

namespace elastrun::goodput {

/// When a job spent what, beside the ledger, which only knows how much. Pure, a value. However long
/// the job, memory stays bounded: beyond twice kSpans the shortest neighbours are made one span,
/// which keeps the time of each of its buckets. So the sums are those of the ledger, always.
class Timeline {
 public:
  static constexpr std::size_t kSpans = 2048;  // 144 bytes each, up to twice as many

  /// One stretch of time. Those of a timeline lie one behind the other without a gap.
  struct Span {
    Duration from{}, to{};  // since the start of the job
    std::array<Duration, kBuckets> buckets{};
    Duration length() const { return to - from; }
    Duration of(Bucket bucket) const { return buckets[static_cast<std::size_t>(bucket)]; }
    /// The bucket that most of it is in.
    Bucket most() const;
    /// Whether nothing else is in it.
    bool is_pure() const { return of(most()) == length(); }
  };

  /// What follows what is there: `time`, not negative, in `bucket`. O(1), amortised over thinning.
  void spend(Bucket bucket, Duration time);
  /// The latest `time` in `from` that lies before `until` was `to`, as it turns out. As much as
  /// there is, also after `until` if there is less before it.
  void move(Bucket from, Bucket to, Duration time, Duration until);

  const std::vector<Span>& spans() const { return spans_; }

 private:
  Duration& in(std::size_t index, Bucket bucket) {
    return spans_[index].buckets[static_cast<std::size_t>(bucket)];
  }
  Duration move_in(std::size_t index, Bucket from, Bucket to, Duration time, Duration until);
  void join(std::size_t index);
  void thin_out();

  std::vector<Span> spans_;
};

}  // namespace elastrun::goodput
