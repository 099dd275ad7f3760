// SPDX-License-Identifier: Apache-2.0
#include "telemetry/series.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace elastrun::telemetry {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

double aggregate(const Window& batch, std::string_view name) {
  for (const auto& [known, value] : batch.aggregates) {
    const auto* const number = std::get_if<double>(&value);
    if (known == name && number != nullptr) return *number;
  }
  return 0;
}

/// What was added between two readings of a total, though it may have wrapped.
std::int64_t rise(std::int64_t from, std::int64_t to) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(to) -
                                   static_cast<std::uint64_t>(from));
}

}  // namespace

Series::Series(const Clock& clock, Kind kind, bool whole)
    : clock_(clock), kind_(kind), whole_(whole), start_(clock.now()), changed_(start_) {
  if (kind == Kind::Histogram) summary_.sketch.emplace();
}

Summary<double> Series::empty(const View& view) const {
  Summary<double> summary;
  if (view.aggregations.need_sketch() || kind_ == Kind::Histogram) summary.sketch.emplace();
  return summary;
}

void Series::set_views(const std::vector<View>& views) {
  const std::lock_guard lock(mutex_);
  views_.clear();
  for (const auto& view : views) {
    auto& state = views_.emplace_back(view);
    state.open = empty(view);
    state.whole = number_;
    state.real = real_;
    const auto& plan = view.window;
    if (plan.period != Duration::zero()) {
      state.index = clock_.now().time_since_epoch() / plan.period;
    }
    if (plan.samples != 0 && !is_total() && kind_ != Kind::Gauge) {
      state.exact.emplace(plan, state.open.sketch.has_value());
    }
  }
}

bool Series::count(std::int64_t more) {
  if (more < 0 && kind_ == Kind::Counter) return false;
  // Wraps instead of being undefined; differences stay right.
  number_.fetch_add(more, kRelaxed);
  return true;
}

bool Series::count(double more) {
  if (!(more >= 0) && kind_ == Kind::Counter) return false;
  real_.fetch_add(more, kRelaxed);
  return true;
}

void Series::set(double value) {
  real_.store(value, kRelaxed);
  if (!known_.load(kRelaxed)) known_.store(true, kRelaxed);
}

void Series::raise(double more) {
  real_.fetch_add(more, kRelaxed);
  known_.store(true, kRelaxed);
}

void Series::add(double value) {
  const std::lock_guard lock(mutex_);
  summary_.add(value);
  for (auto& state : views_) {
    if (!state.exact) {
      state.open.add(value);
      continue;
    }
    state.exact->add(value, clock_.now(), state.closed);
    // Windows that no collection takes must not fill the memory.
    if (state.closed.size() > kMostClosed) state.closed.erase(state.closed.begin());
  }
}

void Series::add(const Window& batch) {
  if (batch.count == 0) return;
  Summary<double> more;
  more.count = batch.count;
  more.sum = aggregate(batch, "sum");
  more.min = aggregate(batch, "min");
  more.max = aggregate(batch, "max");
  more.last = aggregate(batch, "value");
  if (batch.sketch) more.sketch = *batch.sketch;
  const std::lock_guard lock(mutex_);
  // The sum of finite sums may still be beyond what a double holds, and would stay there.
  if (!std::isfinite(summary_.sum + more.sum)) return;
  summary_.merge(more);
  if (!summary_.sketch) return;
  auto& sketch = *summary_.sketch;
  // A worker sends what it likes: values far apart would make a bucket for each step between them.
  while (std::max(sketch.positive().counts.size(), sketch.negative().counts.size()) >
         kMostBuckets) {
    sketch.downscale(sketch.scale() - 1);
  }
}

Series::Seen Series::see(TimePoint now) {
  const std::lock_guard lock(mutex_);
  Seen seen{.start = std::min(start_, now)};
  const std::int64_t whole = number_.load(kRelaxed);
  double number = whole_ ? static_cast<double>(whole) : real_.load(kRelaxed);
  if (is_total()) {
    seen.value = whole_ ? Value(whole) : Value(number);
  } else if (kind_ == Kind::Gauge) {
    seen.no_data = !known_.load(kRelaxed);
    if (!seen.no_data) seen.value = number;
  } else {
    seen.summary = summary_;
    number = static_cast<double>(summary_.count);
  }
  if (std::exchange(seen_, number) != number) changed_ = now;
  seen.changed = changed_;
  return seen;
}

/// What the open window of time comes to: of a total its rise, of a gauge what it holds.
Summary<double> Series::take_window(ViewState& state) {
  if (!is_total() && kind_ != Kind::Gauge) return std::exchange(state.open, empty(state.view));
  Summary<double> summary;
  const std::int64_t whole = number_.load(kRelaxed);
  const double real = real_.load(kRelaxed);
  // Computed in whole numbers: as doubles, totals above 2^53 would lose the rise of one.
  const double risen = whole_ ? static_cast<double>(rise(state.whole, whole)) : real - state.real;
  if (is_total() && risen != 0) summary.add(risen);
  if (!is_total() && known_.load(kRelaxed)) summary.add(real);
  state.whole = whole;
  state.real = real;
  return summary;
}

void Series::close_windows(TimePoint now, bool at_the_end,
                           const std::function<void(Closed)>& tell) {
  const std::lock_guard lock(mutex_);
  for (auto& state : views_) {
    if (state.exact) {
      state.exact->advance(now, state.closed);
      for (auto& one : std::exchange(state.closed, {})) {
        Window window{one.start, one.end, one.index, one.summary.count, one.dropped};
        tell({state.view, std::move(window), std::move(one.summary)});
      }
      continue;
    }
    const Duration period = state.view.window.period;
    if (period == Duration::zero()) continue;
    const std::int64_t index = now.time_since_epoch() / period;
    const bool early = index <= state.index;
    if (early && !at_the_end) continue;
    auto summary = take_window(state);
    const bool nothing = summary.count == 0 && summary.not_finite == 0;
    // The last window of all, in which nothing came: there is nothing to tell.
    if (early && nothing) continue;
    Window window{TimePoint(period * state.index), early ? now : TimePoint(period * index),
                  early ? state.index : index - 1, summary.count};
    state.index = index;
    const auto on_empty = state.view.on_empty;
    if (nothing) {
      if (on_empty == OnEmpty::Skip) continue;
      const bool keeps = on_empty == OnEmpty::KeepLast;
      window.no_data = on_empty == OnEmpty::NoData || (keeps && !state.last);
      if (keeps && state.last) summary = *state.last;
    } else {
      state.last = summary;
    }
    tell({state.view, std::move(window), std::move(summary)});
  }
}

}  // namespace elastrun::telemetry
