// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"
#include "telemetry/sketch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace elastrun::telemetry {

/// How the values of one window become one number. The first seven are torch.monitor's, with its
/// numbers and names, Last being its VALUE (which its Python binding takes for NONE). STDDEV is
/// that of the values themselves (divided by their count); the quantiles come from a Sketch.
enum class Aggregation : std::uint8_t {
  None,
  Last,
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
  P999
};

/// "none", "value", ..., "p999".
std::string_view to_text(Aggregation aggregation);
std::optional<Aggregation> aggregation_named(std::string_view name);
/// 0.5 for P50; nothing for what is not a quantile.
std::optional<double> quantile_of(Aggregation aggregation);

/// A set of them.
class Aggregations {
 public:
  constexpr Aggregations() = default;
  constexpr Aggregations(std::initializer_list<Aggregation> all) {
    for (const auto one : all) add(one);
  }
  constexpr void add(Aggregation one) {
    if (one != Aggregation::None) bits_ |= 1u << static_cast<unsigned>(one);
  }
  constexpr bool has(Aggregation one) const {
    return (bits_ >> static_cast<unsigned>(one) & 1u) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  /// Whether a quantile is among them.
  bool need_sketch() const;
  /// In the order of the enumeration.
  std::vector<Aggregation> list() const;
  bool operator==(const Aggregations&) const = default;

 private:
  std::uint32_t bits_ = 0;
};

/// What is known of the values of one stretch of time; T is double or int64_t. Summaries of parts
/// merge into that of the whole. NaN and infinities are counted apart and spoil nothing.
template <class T>
struct Summary {
  std::uint64_t count = 0;
  T last{}, sum{}, min{}, max{};  // the sum of integers stops at the ends of its type
  double squares = 0;             // of the distances from the mean, added up
  std::uint64_t not_finite = 0;
  std::optional<Sketch> sketch{};  // where quantiles are asked for

  void add(T value);
  void merge(const Summary& other);
  /// Value, mean, sum, max and min as T (an integer's mean is cut towards zero), 0 without values;
  /// quantiles without values or without a sketch are null.
  Value get(Aggregation aggregation) const;
  double mean() const { return count == 0 ? 0 : static_cast<double>(sum) / n(); }
  double stddev() const { return count == 0 ? 0 : square_root(squares / n()); }

 private:
  double n() const { return static_cast<double>(count); }
  static T added(T a, T b);
};

template <class T>
T Summary<T>::added(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    T result;
    if (!__builtin_add_overflow(a, b, &result)) return result;
    return b > 0 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
  }
}

template <class T>
void Summary<T>::add(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {
      not_finite += 1;
      return;
    }
  }
  const double before = static_cast<double>(value) - mean();
  min = count == 0 ? value : std::min(min, value);
  max = count == 0 ? value : std::max(max, value);
  const bool first = count == 0;
  count += 1;
  sum = added(sum, value);
  if (!first) squares += before * (static_cast<double>(value) - mean());  // Welford
  last = value;
  if (sketch) sketch->add(static_cast<double>(value));
}

template <class T>
void Summary<T>::merge(const Summary& other) {
  not_finite += other.not_finite;
  if (other.sketch) {
    if (!sketch) sketch.emplace();
    sketch->merge(*other.sketch);
  }
  if (other.count == 0) return;
  if (count != 0) {  // T. F. Chan et al., 1979
    const double apart = other.mean() - mean();
    squares += apart * apart * n() * other.n() / (n() + other.n());
  }
  squares += other.squares;
  min = count == 0 ? other.min : std::min(min, other.min);
  max = count == 0 ? other.max : std::max(max, other.max);
  sum = added(sum, other.sum);
  count += other.count;
  last = other.last;
}

template <class T>
Value Summary<T>::get(Aggregation aggregation) const {
  switch (aggregation) {
    case Aggregation::None:
      return std::monostate{};
    case Aggregation::Last:
      return last;
    case Aggregation::Mean:
      if constexpr (std::is_integral_v<T>) return count == 0 ? T{} : sum / static_cast<T>(count);
      return static_cast<T>(mean());
    case Aggregation::Count:
      return static_cast<std::int64_t>(count);
    case Aggregation::Sum:
      return sum;
    case Aggregation::Max:
      return max;
    case Aggregation::Min:
      return min;
    case Aggregation::Stddev:
      return stddev();
    default:
      break;
  }
  const auto found = sketch ? sketch->quantile(*quantile_of(aggregation)) : std::nullopt;
  if (!found) return std::monostate{};
  // A bucket is wider than what was seen when it holds the smallest or the largest value.
  return std::clamp(*found, static_cast<double>(min), static_cast<double>(max));
}

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
