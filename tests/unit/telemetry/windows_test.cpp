// SPDX-License-Identifier: Apache-2.0
#include "telemetry/windows.hpp"

#include "core/text.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::telemetry;

namespace {

constexpr Duration kPeriod = std::chrono::seconds(60);

/// A series whose time is told in windows, as telemetry.md's W(id) does.
struct Series {
  explicit Series(WindowPlan plan) : windows(plan) {}
  bool add(std::int64_t value) { return windows.add(value, now, closed); }
  void at(int window) { now = TimePoint(kPeriod * (window - 1) + std::chrono::seconds(1)); }
  std::vector<std::int64_t> sums() const {
    std::vector<std::int64_t> all;
    for (const auto& one : closed) all.push_back(one.summary.sum);
    return all;
  }
  Windows<std::int64_t> windows;
  std::vector<Windows<std::int64_t>::Closed> closed;
  TimePoint now{};
};

using Sums = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("windows: D1, D2: a full window drops the rest of its time") {
  Series series(first(3, kPeriod));
  series.at(1);
  CHECK(series.add(1));
  CHECK(series.add(2));
  CHECK(series.add(3));
  CHECK_FALSE(series.add(4));
  CHECK(series.sums() == Sums{6});
  series.at(2);
  CHECK(series.add(5));
  CHECK(series.sums() == Sums{6});
  CHECK(series.windows.open().sum == 5);
  CHECK(series.windows.dropped() == 1);
}

TEST_CASE("windows: deviation of D2: the last window with values is kept") {
  Series series(first(3, kPeriod));
  for (const int value : {1, 2, 3}) series.add(value);
  series.at(2);
  series.add(5);
  CHECK(series.windows.last_closed().sum == 6);  // torch.monitor: 0
}

TEST_CASE("windows: D3: empty windows in between are not told of") {
  Series series(every(kPeriod));
  series.at(1);
  series.add(1);
  series.add(2);
  series.at(100);
  series.add(3);
  series.at(103);
  series.add(9);
  CHECK(series.sums() == Sums{3, 3});
  CHECK(series.closed[0].summary.count == 2);
  CHECK(series.closed[1].index == 99);
}

TEST_CASE("windows: D4: with room for one, each window has one") {
  Series series(first(1, kPeriod));
  series.at(1);
  CHECK(series.add(1));
  CHECK_FALSE(series.add(2));
  series.at(2);
  CHECK(series.add(3));
  CHECK(series.sums() == Sums{1, 3});
  CHECK(series.closed[0].dropped == 0);
  CHECK(series.closed[1].dropped == 1);
}

TEST_CASE("windows: D5: what is beyond the number is dropped") {
  Series series(first(5, kPeriod));
  series.at(1);
  for (int i = 0; i < 10; ++i) series.add(i);
  CHECK(series.sums() == Sums{10});
  CHECK(series.closed[0].summary.count == 5);
  CHECK(series.windows.dropped() == 5);
}

TEST_CASE("windows: by number alone none is dropped, and time closes nothing") {
  Series series(every_samples(2));
  for (const int value : {1, 2, 3, 4, 5}) {
    CHECK(series.add(value));
    series.now += std::chrono::hours(1);
  }
  series.windows.advance(series.now, series.closed);
  CHECK(series.sums() == Sums{3, 7});
  CHECK(series.closed[1].index == 1);
  CHECK(series.closed[1].start == TimePoint(std::chrono::hours(2)));
  CHECK(series.closed[1].end == TimePoint(std::chrono::hours(3)));
  CHECK_FALSE(series.windows.due());
  series.windows.finish(series.now, series.closed);
  CHECK(series.sums() == Sums{3, 7, 5});
}

TEST_CASE("windows: S1: a window whose time is over is closed without another value") {
  Series series(every(kPeriod));
  CHECK_FALSE(series.windows.due());
  series.at(3);
  series.add(1);
  CHECK(series.windows.due() == TimePoint(3 * kPeriod));
  series.windows.advance(TimePoint(3 * kPeriod - Duration(1)), series.closed);
  CHECK(series.closed.empty());
  series.windows.advance(TimePoint(3 * kPeriod), series.closed);
  CHECK(series.sums() == Sums{1});
  CHECK(series.closed[0].start == TimePoint(2 * kPeriod));
  CHECK(series.closed[0].end == TimePoint(3 * kPeriod));
}

TEST_CASE("windows: R20: windows by number weigh all values alike, those by time the slow ones") {
  // 100 batches take 1 s, 100 take 3 s; by time, a window of slow ones has fewer values.
  Windows<double> timed(every(std::chrono::seconds(30))), counted(every_samples(10));
  std::vector<Windows<double>::Closed> by_time, by_number;
  TimePoint now{};
  for (int i = 0; i < 200; ++i) {
    const double took = i < 100 ? 1 : 3;
    now += from_seconds(took);
    timed.add(took, now, by_time);
    counted.add(took, now, by_number);
  }
  const auto mean = [](const auto& windows) {
    double sum = 0;
    for (const auto& one : windows) sum += one.summary.mean();
    return sum / static_cast<double>(windows.size());
  };
  CHECK(mean(by_number) == doctest::Approx(2));
  CHECK(mean(by_time) > 2.3);
}

TEST_CASE("windows: D7: nothing open, nothing told at the end") {
  Series series(every(kPeriod));
  series.windows.finish(series.now, series.closed);
  CHECK(series.closed.empty());
}
