// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/value_summary.hpp"

#include <vector>

namespace elastrun::telemetry {

/// When a window closes: by the time, by the number of its values, or by whatever comes first.
/// Windows of time lie on the clock's grid, not on the moment of construction, so those of all
/// series of a process begin together.
struct WindowPlan {
  Duration period{};          // zero: not by time
  std::uint64_t samples = 0;  // zero: not by number
  bool drops_rest = false;    // full before its time, a window takes no more until that is over
  bool operator==(const WindowPlan&) const = default;
};
constexpr WindowPlan every(Duration period) {
  return {period, 0, false};
}
/// The next window begins with the next value: windows are comparable, not equally long.
constexpr WindowPlan every_samples(std::uint64_t count) {
  return {{}, count, false};
}
/// At most `count` values of each period: torch.monitor's max_samples.
constexpr WindowPlan first(std::uint64_t count, Duration per) {
  return {per, count, true};
}

/// Sorts the values of one series into windows, one by one and exactly. Pure: the time is passed in
/// and read once for each value. Not for several threads.
template <class T>
class Windows {
 public:
  struct Closed {
    std::int64_t index = 0;  // floor(time / period); with windows by number alone 0, 1, 2...
    TimePoint start, end;    // by number alone: of the first and last value
    Summary<T> summary;
    std::uint64_t dropped = 0;  // values refused since the window before this one was closed
  };

  /// `plan`: by time, by number, or both; with neither only finish() closes a window.
  explicit Windows(WindowPlan plan, bool with_sketch = false)
      : plan_(plan), with_sketch_(with_sketch) {
    reopen();
  }

  /// False if the open window takes no more. Windows that end with this are added to `closed`.
  bool add(T value, TimePoint now, std::vector<Closed>& closed) {
    advance(now, closed);
    if (full_) {
      dropped_ += 1;
      return false;
    }
    if (open_.count == 0) first_ = now;
    open_.add(value);
    if (plan_.samples != 0 && open_.count >= plan_.samples) {
      close(now, closed);
      full_ = plan_.drops_rest;
      if (plan_.period == Duration::zero()) index_ += 1;
    }
    return true;
  }
  /// Closes the open window if its time is over. Empty windows are not told of.
  void advance(TimePoint now, std::vector<Closed>& closed) {
    if (plan_.period == Duration::zero()) return;
    const std::int64_t index = now.time_since_epoch() / plan_.period;
    if (index <= index_) return;
    close(now, closed);
    index_ = index;
    full_ = false;
  }
  /// Closes what is open: nothing more will come.
  void finish(TimePoint now, std::vector<Closed>& closed) { close(now, closed); }

  const Summary<T>& open() const { return open_; }
  /// The last window with values; an empty summary before the first. torch.monitor forgets it as
  /// soon as a window that was full is over.
  const Summary<T>& last_closed() const { return last_; }
  std::uint64_t dropped() const { return dropped_; }
  /// The end of the open window, if time ends it and it has values.
  std::optional<TimePoint> due() const {
    if (plan_.period == Duration::zero() || open_.count == 0) return std::nullopt;
    return TimePoint(plan_.period * (index_ + 1));
  }

 private:
  void reopen() {
    open_ = {};
    if (with_sketch_) open_.sketch.emplace();
  }
  void close(TimePoint now, std::vector<Closed>& closed) {
    if (open_.count == 0) return;
    last_ = std::move(open_);
    reopen();
    const bool timed = plan_.period != Duration::zero();
    const TimePoint start = timed ? TimePoint(plan_.period * index_) : first_;
    const TimePoint end = timed ? std::min(now, start + plan_.period) : now;
    closed.push_back({index_, start, end, last_, dropped_ - told_});
    told_ = dropped_;
  }

  const WindowPlan plan_;
  const bool with_sketch_;
  Summary<T> open_, last_;
  std::int64_t index_ = 0;
  TimePoint first_{};
  bool full_ = false;
  std::uint64_t dropped_ = 0, told_ = 0;
};

}  // namespace elastrun::telemetry
