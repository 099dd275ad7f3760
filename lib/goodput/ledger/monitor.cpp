// SPDX-License-Identifier: Apache-2.0

#include "goodput/ledger/monitor.hpp"

#include <algorithm>

namespace elastrun::goodput {

namespace {

constexpr std::size_t place_of(Bucket bucket) {
  return static_cast<std::size_t>(bucket);
}

}  // namespace

Monitor::Monitor(std::vector<Duration> sizes) {
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  for (const Duration size : sizes) {
    const auto resolution = std::max(size / static_cast<std::int64_t>(kSamples), Duration(1));
    tracks_.push_back({size, resolution, {Sample()}});
  }
  if (!tracks_.empty()) finest_ = tracks_.front().resolution;
}

/// Whatever has been taken out of a bucket was never in it: what was undone is lost, the rest went
/// where there is more now. `past` adds up to what it did, and is nowhere above `now`, which is
/// later and so adds up to more.
void Monitor::rebook(Buckets& past, const Buckets& now) {
  Duration undone{}, moved{};
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (past[i] <= now[i]) continue;
    const bool work = i == place_of(Bucket::Running) || i == place_of(Bucket::Productive);
    (work ? undone : moved) += past[i] - now[i];
    past[i] = now[i];
  }
  const auto give = [&](std::size_t to, Duration& from) {
    const auto part = std::min(from, now[to] - past[to]);
    past[to] += part;
    from -= part;
  };
  give(place_of(Bucket::Lost), undone);
  moved += undone;
  for (std::size_t i = 0; i < kBuckets && moved > Duration::zero(); ++i) {
    if (i != place_of(Bucket::Lost)) give(i, moved);
  }
  give(place_of(Bucket::Lost), moved);
}

void Monitor::Track::take(const Sample& now) {
  const auto& before = samples.back().buckets;
  bool fell = false;
  for (std::size_t i = 0; i < kBuckets; ++i) fell = fell || now.buckets[i] < before[i];
  if (fell) {
    for (auto& sample : samples) rebook(sample.buckets, now.buckets);
  }
  const auto last = samples.size() - 1;
  const bool close = last > 0 && samples[last].at - samples[last - 1].at < resolution;
  // The last sample moves on until it is far enough from the one before: memory stays at the number
  // of samples however often it is fed.
  if (close) samples.pop_back();
  samples.push_back(now);
  // One from before the window stays: the window begins on the line from there to the next one.
  while (samples.size() > 1 && samples[1].at <= now.at - size) samples.pop_front();
}

void Monitor::take(const Ledger::Summary& now) {
  // Summaries of one ledger only grow; an older one would tear the order of the samples.
  if (now.elapsed < latest_.at) return;
  latest_ = {now.elapsed, now.buckets, now.restoring};
  for (auto& track : tracks_) track.take(latest_);
}

/// On the line from one to the other, to the nanosecond: what rounding leaves goes to the bucket
/// that has grown most.
Monitor::Buckets Monitor::between(const Sample& before, const Sample& after, Duration at) {
  Buckets buckets = before.buckets;
  const auto whole = after.at - before.at;
  if (whole <= Duration::zero()) return buckets;
  const double share = to_share(at - before.at, whole);
  Duration rest = at - before.at, most{};
  std::size_t largest = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    const auto grown = after.buckets[i] - before.buckets[i];
    const Duration part(static_cast<std::int64_t>(static_cast<double>(grown.count()) * share));
    buckets[i] += part;
    rest -= part;
    if (grown > most) most = grown, largest = i;
  }
  buckets[largest] += rest;
  return buckets;
}

/// As `between`, of what was loaded.
Duration Monitor::restored(const Sample& before, const Sample& after, Duration at) {
  const auto whole = after.at - before.at;
  if (whole <= Duration::zero()) return before.restoring;
  const double share = to_share(at - before.at, whole);
  const auto grown = static_cast<double>((after.restoring - before.restoring).count());
  return before.restoring + Duration(static_cast<std::int64_t>(grown * share));
}

WindowView Monitor::view(std::size_t window, const Ledger::Summary& now) const {
  const auto& [size, resolution, samples] = tracks_[window];
  WindowView view{size,           std::min(size, now.elapsed),
                  now.buckets,    now.steps_known(),
                  now.loss_known, now.doubtful,
                  now.restoring};
  const Duration begin = now.elapsed - size;
  if (begin <= Duration::zero()) return view;
  const auto after = std::ranges::upper_bound(samples, begin, {}, &Sample::at);
  const Sample last{now.elapsed, now.buckets, now.restoring};
  const Sample& before = after == samples.begin() ? *after : *std::prev(after);
  const Sample& next = after == samples.end() ? last : *after;
  Buckets past = between(before, next, begin);
  rebook(past, now.buckets);
  for (std::size_t i = 0; i < kBuckets; ++i) view.buckets[i] -= past[i];
  view.restoring = std::clamp(now.restoring - restored(before, next, begin), Duration::zero(),
                              view.of(Bucket::Checkpoint));
  return view;
}

}  // namespace elastrun::goodput
