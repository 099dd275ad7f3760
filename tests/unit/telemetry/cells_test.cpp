// SPDX-License-Identifier: Apache-2.0
#include "telemetry/cells.hpp"

#include "telemetry/series.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <thread>

using namespace elastrun::telemetry;

namespace {

/// Harvests for one cursor, as the registry does.
struct Collected {
  explicit Collected(Series& one) : series(one) {}
  Summary<double> next() {
    Range range;
    Totals totals = series.harvest(range);
    cursor.range.merge(range);
    auto summary = series.since(cursor, totals);
    cursor = {std::move(totals), {}};
    return summary;
  }
  Series& series;
  Series::Cursor cursor;
};

}  // namespace

TEST_CASE("cells: a window has the smallest, largest and last of its own values only") {
  StatSeries series;
  Collected windows(series);
  for (const double value : {5.0, -3.0, 8.0}) series.add(value);
  auto first = windows.next();
  CHECK(first.count == 3);
  CHECK(first.sum == 10);
  CHECK(first.min == -3);
  CHECK(first.max == 8);
  CHECK(first.last == 8);
  CHECK(first.stddev() == doctest::Approx(std::sqrt(194.0 / 9)));
  series.add(1);
  series.add(2);
  const auto second = windows.next();
  CHECK(second.min == 1);
  CHECK(second.max == 2);
  CHECK(second.count == 2);
  CHECK(windows.next().count == 0);
}

TEST_CASE("cells: squares keep their digits far from zero") {
  StatSeries series;
  Collected windows(series);
  for (int i = 0; i < 1000; ++i) series.add(1e9 + i % 2);
  CHECK(windows.next().stddev() == doctest::Approx(0.5));
}

TEST_CASE("cells: NaN and infinities are counted apart") {
  StatSeries series;
  Collected windows(series);
  for (const double value : {1.0, std::nan(""), HUGE_VAL, -HUGE_VAL}) series.add(value);
  const auto window = windows.next();
  CHECK(window.count == 1);
  CHECK(window.sum == 1);
  CHECK(window.not_finite == 3);
}

TEST_CASE("cells: a sketch sees what comes after it was wanted, in all threads") {
  StatSeries series;
  series.add(1);
  series.want_sketch();
  Collected windows(series);
  for (int i = 1; i <= 100; ++i) series.add(i);
  std::thread([&] {
    for (const double value : {0.0, -1.0, 1e300}) series.add(value);
  }).join();
  const auto window = windows.next();
  CHECK(window.count == 104);
  REQUIRE(window.sketch);
  CHECK(window.sketch->count() == 103);
  CHECK(*window.sketch->quantile(0.5) == doctest::Approx(50).epsilon(0.011));
  CHECK(window.sketch->zeros() == 1);
  CHECK(window.sketch->negative().total() == 1);
}

TEST_CASE("cells: threads that start and end lose nothing, whatever the collectors' periods") {
  StatSeries series;
  CounterSeries<std::int64_t> counter;
  Collected fast(series), total(counter);
  constexpr int kRounds = 20, kThreads = 3, kValues = 2000;
  std::uint64_t seen = 0;
  double sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kValues; ++i) {
          series.add(i);
          counter.add(1, false);
        }
      });
    }
    const auto window = fast.next();  // while they add
    CHECK(window.min >= 0);
    CHECK(window.max < kValues);
    seen += window.count;
    sum += window.sum;
  }
  const auto rest = fast.next();
  seen += rest.count;
  sum += rest.sum;
  CHECK(seen == std::uint64_t{kRounds} * kThreads * kValues);
  CHECK(sum == kRounds * kThreads * (kValues * (kValues - 1) / 2.0));
  CHECK(total.next().sum == kRounds * kThreads * kValues);
}

TEST_CASE("cells: a thread that ends leaves its cell to the next") {
  const auto cells = std::make_shared<Cells<SumCell<std::int64_t>>>();
  for (int i = 0; i < 10; ++i) std::thread([&] { cells->mine().add(1); }).join();
  std::size_t count = 0;
  cells->each([&](const SumCell<std::int64_t>& cell, std::size_t) {
    count += 1;
    CHECK(cell.sum.load() == 10);
  });
  CHECK(count == 1);
}

TEST_CASE("cells: a counter of whole numbers wraps, differences stay right") {
  CounterSeries<std::int64_t> series;
  Collected windows(series);
  series.add(std::numeric_limits<std::int64_t>::max(), false);
  windows.next();
  series.add(7, false);
  CHECK(windows.next().sum == 7);
}

TEST_CASE("cells: what is added after a tick has ended is told apart from what came before") {
  StatCell cell;
  std::atomic<double> shift{std::nan("")};
  for (const double value : {5.0, 6.0}) cell.add(value, 1, shift);
  cell.add(7, 2, shift);  // the collector has ended tick 1 and has not read the cell yet
  const auto now = cell.read();
  CHECK(now.count == 3);
  CHECK(now.current.number == 2);
  CHECK(now.current.count_before == 2);
  CHECK(now.current.sum_before == 11);
  CHECK(now.current.squares_before == 1);
  CHECK(now.current.min == 7);
  CHECK(now.previous.number == 1);
  CHECK(now.previous.min == 5);
  CHECK(now.previous.max == 6);
  CHECK(shift.load() == 5);
}
