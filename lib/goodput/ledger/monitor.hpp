// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "goodput/ledger/ledger.hpp"

#include <deque>

namespace elastrun::goodput {

/// Where the time of the latest `size` of a job went. A younger job has only `covered` of it.
struct WindowView {
  Duration size{}, covered{};
  std::array<Duration, kBuckets> buckets{};  // adds up to covered
  bool steps_known = false;                  // of the job
  bool loss_known = true;
  Duration doubtful{};   // of Productive, at most
  Duration restoring{};  // of Checkpoint
  Duration of(Bucket bucket) const { return buckets[static_cast<std::size_t>(bucket)]; }
  Share share() const { return {covered, buckets, doubtful, steps_known, loss_known}; }
};

/// The books of a job over rolling windows, several at once, from cumulative summaries of its
/// ledger. Pure. Work that turns out to be lost is lost where it was done: a window that does not
/// reach back to it does not pay for it. Buckets of a window are never negative, and add up.
///
/// Memory is bounded: kSamples of the past for each window. At its far end a window is exact to its
/// size / kSamples, however seldom it is told something: between two facts time is of one kind.
class Monitor {
 public:
  static constexpr std::size_t kSamples = 120;
  /// In ascending order, each once, of at least a nanosecond.
  explicit Monitor(std::vector<Duration> sizes);

  /// Whether so late in the job a summary would tell more than the latest: callers need not make
  /// one before, unless the job has entered another phase.
  bool is_due(Duration elapsed) const { return elapsed - latest_.at >= finest_; }
  /// In the order of their elapsed time; an older one is ignored.
  void take(const Ledger::Summary& now);
  std::size_t windows() const { return tracks_.size(); }
  /// The window of that number until `now`. O(1): a search among kSamples.
  WindowView view(std::size_t window, const Ledger::Summary& now) const;

 private:
  using Buckets = std::array<Duration, kBuckets>;
  struct Sample {
    Duration at{};  // since the start of the job
    Buckets buckets{};
    Duration restoring{};
  };
  /// What is kept of the past for one window: the oldest lies at its beginning or before.
  struct Track {
    Duration size, resolution;
    std::deque<Sample> samples;
    void take(const Sample& now);
  };
  static void rebook(Buckets& past, const Buckets& now);
  static Duration restored(const Sample& before, const Sample& after, Duration at);
  static Buckets between(const Sample& before, const Sample& after, Duration at);

  std::vector<Track> tracks_;
  Duration finest_{};
  Sample latest_;
};

}  // namespace elastrun::goodput
