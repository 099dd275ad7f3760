// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/timeline.hpp"

#include <algorithm>
#include <numeric>

namespace elastrun::goodput {
namespace {

using Span = Timeline::Span;

Span pure(Bucket bucket, Duration from, Duration to) {
  Span span{from, to, {}};
  span.buckets[static_cast<std::size_t>(bucket)] = to - from;
  return span;
}

Span both(const Span& one, const Span& next) {
  Span span{one.from, next.to, one.buckets};
  for (std::size_t i = 0; i < kBuckets; ++i) span.buckets[i] += next.buckets[i];
  return span;
}

/// Which spans to join with the one after them: disjoint pairs, the shortest first, `most` at most.
std::vector<bool> shortest_pairs(const std::vector<Span>& spans, std::size_t most) {
  std::vector<std::size_t> order(spans.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&](std::size_t i) { return spans[i + 1].to - spans[i].from; });
  std::vector<bool> used(spans.size()), joined(spans.size());
  for (const std::size_t i : order) {
    if (most == 0) break;
    if (used[i] || used[i + 1]) continue;
    used[i] = used[i + 1] = joined[i] = true;
    --most;
  }
  return joined;
}

}  // namespace

Bucket Span::most() const {
  return static_cast<Bucket>(std::ranges::max_element(buckets) - buckets.begin());
}

void Timeline::spend(Bucket bucket, Duration time) {
  if (time <= Duration::zero()) return;
  const Duration from = spans_.empty() ? Duration::zero() : spans_.back().to;
  spans_.push_back(pure(bucket, from, from + time));
  if (spans_.size() > 1) join(spans_.size() - 2);
  // At twice the number, so that each span costs a constant share of the sorting.
  if (spans_.size() > 2 * kSpans) thin_out();
}

void Timeline::move(Bucket from, Bucket to, Duration time, Duration until) {
  for (std::size_t i = spans_.size(); i-- > 0 && time > Duration::zero();) {
    if (spans_[i].from < until) time -= move_in(i, from, to, time, until);
  }
  // What was not found before `until` was booked later than the fact says. From the end of all
  // there is nothing later, so this goes one level deep.
  if (time > Duration::zero() && !spans_.empty() && until < spans_.back().to) {
    move(from, to, time, spans_.back().to);
  }
}

/// How much of it was moved. A span of one bucket is divided where it has to be.
Duration Timeline::move_in(std::size_t index, Bucket from, Bucket to, Duration time,
                           Duration until) {
  const Span span = spans_[index];
  if (span.of(from) <= Duration::zero() || from == to) return {};
  if (!span.is_pure()) {
    const Duration moved = std::min(time, span.of(from));
    in(index, from) -= moved;
    in(index, to) += moved;
    return moved;
  }
  const Duration end = std::min(until, span.to);
  const Duration begin = std::max(span.from, end - time);
  spans_[index] = pure(to, begin, end);
  const auto at = spans_.begin() + static_cast<std::ptrdiff_t>(index);
  if (end < span.to) spans_.insert(at + 1, pure(from, end, span.to));
  if (span.from < begin) {
    spans_.insert(spans_.begin() + static_cast<std::ptrdiff_t>(index),
                  pure(from, span.from, begin));
    ++index;
  }
  join(index);
  if (index > 0) join(index - 1);
  return end - begin;
}

/// Makes it and the next one, if there is one, a single span if both are of one and the same
/// bucket.
void Timeline::join(std::size_t index) {
  if (index + 1 >= spans_.size()) return;
  const Span& one = spans_[index];
  const Span& next = spans_[index + 1];
  if (one.most() != next.most() || !one.is_pure() || !next.is_pure()) return;
  spans_[index] = both(one, next);
  spans_.erase(spans_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
}

void Timeline::thin_out() {
  while (spans_.size() > kSpans) {
    // A few at a time: of disjoint pairs that were to halve it, the last ones would be long.
    const auto most = std::min(spans_.size() - kSpans, spans_.size() / 4);
    const auto joined = shortest_pairs(spans_, most);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const Span span = joined[i] ? both(spans_[i], spans_[i + 1]) : spans_[i];
      if (joined[i]) ++i;
      spans_[kept++] = span;
    }
    spans_.resize(kept);
  }
}

}  // namespace elastrun::goodput
