// SPDX-License-Identifier: Apache-2.0
// What the registry gives to those who collect: points for who pulls, windows for who is told.
#include "telemetry/family.hpp"

namespace elastrun::telemetry {
namespace {

Value value_of(Kind kind, bool whole, const Totals& totals, const Totals& base,
               const Range& range) {
  if (kind == Kind::Gauge) return range.count == 0 ? Value() : Value(range.last);
  if (kind != Kind::Counter && kind != Kind::UpDown) return {};
  // Computed in whole numbers: as doubles, totals above 2^53 would lose the rise of one.
  if (whole) return rise(base.whole, totals.whole);
  return totals.sum - base.sum;
}

std::int64_t index_at(TimePoint now, Duration period) {
  return now.time_since_epoch() / period;
}

}  // namespace

Cursor::Cursor(Registry& registry, Temporality temporality)
    : registry_(registry), temporality_(temporality), start_(registry.clock().now()) {
  const std::lock_guard lock(registry_.mutex_);
  registry_.cursors_.push_back(this);
}

Cursor::~Cursor() {
  const std::lock_guard lock(registry_.mutex_);
  std::erase(registry_.cursors_, this);
}

/// Kept from the first collection on. The two clocks are read one after the other, so what lies
/// between them is never the same.
Duration Cursor::ahead(const Stamp& at) {
  constexpr Duration kLeast = std::chrono::milliseconds(100);
  const Duration now = at.wall.time_since_epoch() - at.mono.time_since_epoch();
  // Set back: what began since would begin in the future.
  if (!ahead_ || *ahead_ - now > kLeast) ahead_ = now;
  return *ahead_;
}

void Registry::harvest(Entry& entry, TimePoint now) {
  Range range;
  Totals totals = entry.series->harvest(range);
  if (totals.count != entry.totals.count || totals.whole != entry.totals.whole ||
      totals.sum != entry.totals.sum) {
    entry.changed = now;
  }
  entry.totals = std::move(totals);
  entry.range = range;
  for (auto& state : entry.views) state.cursor.range.merge(range);
  if (range.count == 0) return;
  // The series forgets its range with this harvest, so each cursor keeps what it has not told yet.
  for (Cursor* const cursor : cursors_) cursor->places_[entry.series.get()].range.merge(range);
}

Point Registry::point_of(const Family& family, const Entry& entry, Cursor& cursor, TimePoint now) {
  const bool delta = cursor.temporality_ == Cursor::Temporality::Delta;
  // The total of a counter has no range, and who wants all of it has no place to begin at.
  const bool whole_total = !delta && (family.kind == Kind::Counter || family.kind == Kind::UpDown);
  Series::Cursor from_start;
  auto& at = whole_total ? from_start : cursor.places_[entry.series.get()];
  Point point{family.spec, family.kind, attributes_of(*family.spec, entry.labels)};
  point.value = value_of(family.kind, entry.series->is_whole(), entry.totals, at.base, entry.range);
  point.summary = entry.series->since(at, entry.totals);
  point.no_data = family.kind == Kind::Gauge && entry.range.count == 0;
  // A series that is younger than the last collection has counted since it was made, not before.
  point.start = delta ? std::max(cursor.start_, entry.start) : entry.start;
  point.changed = entry.changed;
  if (delta) at = {entry.totals, {}};
  if (now < point.start) point.start = now;
  return point;
}

Snapshot Registry::collect(Cursor& cursor, std::string_view pattern) {
  run_observers();
  const std::lock_guard lock(mutex_);
  Snapshot snapshot{++tick_, {clock_.now(), clock_.wall()}, {}};
  snapshot.ahead = cursor.ahead(snapshot.at);
  std::size_t series = 0;
  for (const auto& [key, family] : families_) series += family->entries.size();
  snapshot.points.reserve(series);
  for (const auto& [key, family] : families_) {
    if (!fits_pattern(pattern, family->spec->name)) continue;
    for (auto& [labels, entry] : family->entries) {
      harvest(entry, snapshot.at.mono);
      snapshot.points.push_back(point_of(*family, entry, cursor, snapshot.at.mono));
    }
  }
  // After the points, whose interval begins where the one before has ended.
  cursor.start_ = snapshot.at.mono;
  return snapshot;
}

std::optional<TimePoint> Registry::due() const {
  const std::lock_guard lock(mutex_);
  std::optional<TimePoint> first;
  for (const auto& [key, family] : families_) {
    // An observer has no series before it is asked for the first time.
    if (family->entries.empty() && !family->observer) continue;
    for (const auto& view : family->views) {
      const Duration period = view.window.period;
      if (period == Duration::zero()) continue;
      // At multiples of the period, so that the windows of all series end together.
      const TimePoint end(period * (index_at(clock_.now(), period) + 1));
      if (!first || end < *first) first = end;
    }
  }
  return first;
}

std::vector<Record> Registry::close_windows(Closing closing) {
  run_observers();
  const std::lock_guard lock(mutex_);
  const Stamp now{clock_.now(), clock_.wall()};
  std::vector<Record> records;
  const auto add = [&](Record record) {
    record.stamp = now;
    records.push_back(std::move(record));
  };
  for (const auto& [key, family] : families_) {
    for (auto& [labels, entry] : family->entries) {
      const bool due = std::any_of(entry.views.begin(), entry.views.end(), [&](const auto& state) {
        const Duration period = state.view.window.period;
        return !state.exact && period != Duration::zero() &&
               (closing == Closing::AtTheEnd || index_at(now.mono, period) > state.index);
      });
      // Only then: each harvest ends a tick in the cells of all threads.
      if (due) harvest(entry, now.mono);
      for (auto& state : entry.views) close_view(*family, entry, state, now.mono, closing, add);
    }
  }
  return records;
}

void Registry::close_view(const Family& family, Entry& entry, ViewState& state, TimePoint now,
                          Closing closing, const std::function<void(Record)>& add) {
  const bool whole = entry.series->is_whole();
  if (state.exact) {
    for (auto& closed : state.exact->take_closed(now)) {
      Window window{closed.start, closed.end, closed.index};
      window.dropped = closed.dropped;
      window.count = closed.summary.count;
      add(window_record(*family.spec, entry.labels, state.view, closed.summary, std::move(window),
                        whole));
    }
    return;
  }
  const Duration period = state.view.window.period;
  if (period == Duration::zero()) return;
  const std::int64_t index = index_at(now, period);
  const bool early = index <= state.index;
  if (early && closing == Closing::InTime) return;
  auto summary = entry.series->since(state.cursor, entry.totals);
  // The last window of all, in which nothing came: there is nothing to tell.
  if (early && summary.count == 0 && summary.not_finite == 0) return;
  Window window{TimePoint(period * state.index), early ? now : TimePoint(period * index),
                early ? state.index : index - 1};
  window.count = summary.count;
  state.index = index;
  state.cursor = {entry.totals, {}};
  if (summary.count == 0 && summary.not_finite == 0) {
    // After the cursor was moved: the empty window is over all the same.
    if (state.view.on_empty == OnEmpty::Skip) return;
    window.no_data = state.view.on_empty == OnEmpty::NoData ||
                     (state.view.on_empty == OnEmpty::KeepLast && !state.last);
    if (state.view.on_empty == OnEmpty::KeepLast && state.last) summary = *state.last;
  } else {
    state.last = summary;
  }
  add(window_record(*family.spec, entry.labels, state.view, summary, std::move(window), whole));
}

}  // namespace elastrun::telemetry
