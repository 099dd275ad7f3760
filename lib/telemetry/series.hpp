// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "telemetry/descriptor.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace elastrun::telemetry {

/// The values of one instrument under one set of labels, since the start and in the windows of its
/// views. For all threads: totals and gauges are atomic, and the others have a lock around a few
/// instructions, as nearly all that is added comes from one thread, the agent's loop.
class Series {
 public:
  /// Buckets of each sign that batches leave; beyond that the resolution is halved: the values of a
  /// worker may span 600 octaves, and its series must not take a megabyte each.
  static constexpr std::size_t kMostBuckets = 640;
  /// A window of a view that has ended.
  struct Closed {
    const View& view;
    Window window;
    Summary<double> summary;
  };

  /// Borrows `clock`. `whole`: a total that is counted in whole numbers.
  Series(const Clock& clock, Kind kind, bool whole);

  /// The windows of views that were there before are forgotten.
  void set_views(const std::vector<View>& views);

  /// To a total. False, and nothing is added, for what a counter that only rises does not take.
  bool count(std::int64_t more);
  bool count(double more);
  /// A gauge, or a total that is kept elsewhere.
  void set(double value);
  void raise(double more);
  /// A gauge has no value any more; a total keeps its own.
  void forget() { known_.store(false, std::memory_order_relaxed); }
  /// To a stat or histogram: NaN and infinities are counted apart.
  void add(double value);
  /// Values that others have summed up: counts, sum, extremes and, where it has one, the sketch.
  /// What is not finite is left out.
  void add(const Window& batch);

  /// What a collector sees at `now`.
  struct Seen {
    Value value{};
    Summary<double> summary{};
    bool no_data = false;
    TimePoint start{}, changed{};
  };
  Seen see(TimePoint now);
  /// Calls `tell` for the windows that have ended by `now`; at the end of all also for those of
  /// time that are open and have seen something.
  void close_windows(TimePoint now, bool at_the_end, const std::function<void(Closed)>& tell);

 private:
  using Exact = Windows<double>;
  struct ViewState {
    View view;
    std::int64_t index = 0;                 // of the open window of time
    Summary<double> open{};                 // of stats
    std::int64_t whole = 0;                 // of totals: where that window began
    double real = 0;                        // ditto
    std::optional<Summary<double>> last{};  // with values
    std::optional<Exact> exact{};           // where a number of values ends a window
    std::vector<Exact::Closed> closed{};    // of those; the oldest of too many go
  };
  static constexpr std::size_t kMostClosed = 1024;

  bool is_total() const { return kind_ == Kind::Counter || kind_ == Kind::UpDown; }
  Summary<double> empty(const View& view) const;
  Summary<double> take_window(ViewState& state);

  const Clock& clock_;
  const Kind kind_;
  const bool whole_;
  const TimePoint start_;
  std::atomic<bool> known_{false};
  std::atomic<std::int64_t> number_{0};
  std::atomic<double> real_{0};
  std::mutex mutex_;  // for what follows
  Summary<double> summary_;
  std::vector<ViewState> views_;
  TimePoint changed_;  // as far as see() has looked
  double seen_ = 0;    // by it: a value, or how many
};

}  // namespace elastrun::telemetry
