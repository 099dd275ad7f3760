// SPDX-License-Identifier: Apache-2.0

#include "goodput/account/job_account.hpp"
#include "goodput/ledger/ledger.hpp"
#include "unit/goodput/moments.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <limits>
#include <random>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

/// "startup 0-10, running 10-20", in seconds.
std::string text(const std::vector<Timeline::Span>& spans) {
  std::string all;
  for (const auto& span : spans) {
    all += fmt::format("{}{} {:g}-{:g}", all.empty() ? "" : ", ", bucket_name(span.most()),
                       std::chrono::duration<double>(span.from).count(),
                       std::chrono::duration<double>(span.to).count());
    if (!span.is_pure()) all += "*";
  }
  return all;
}

Ledger running_with_timeline() {
  Ledger ledger(kStart);
  ledger.keep_timeline();
  ledger.enter(Bucket::Running, at(10s));
  return ledger;
}

/// Whether the spans follow each other and add up to the books.
void check_closed(const std::vector<Timeline::Span>& spans, const Ledger::Summary& summary) {
  Duration end{};
  std::array<Duration, kBuckets> sums{};
  for (const auto& span : spans) {
    REQUIRE(span.from == end);
    REQUIRE(span.from < span.to);
    end = span.to;
    Duration within{};
    for (std::size_t i = 0; i < kBuckets; ++i) {
      REQUIRE(span.buckets[i] >= 0s);
      sums[i] += span.buckets[i];
      within += span.buckets[i];
    }
    REQUIRE(within == span.length());
  }
  CHECK(end == summary.elapsed);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    CAPTURE(bucket_name(static_cast<Bucket>(i)));
    CHECK(sums[i] == summary.buckets[i]);
  }
}

}  // namespace

TEST_CASE("timeline: what is lost lies where it was done") {
  Ledger ledger = running_with_timeline();
  ledger.step(1, at(20s));
  ledger.checkpoint(-1, at(32s));
  ledger.step(3, at(40s));
  ledger.failed(at(45s));
  ledger.enter(Bucket::Running, at(50s));
  ledger.begin_step(2, at(55s));
  CHECK(
      text(ledger.timeline(at(60s))) ==
      "startup 0-10, running 10-16, productive 16-20, checkpoint 20-32, lost 32-45, restart 45-50, "
      "running 50-60");
}

TEST_CASE("timeline: a resume that comes later moves what lies before the failure, not after") {
  Ledger ledger = running_with_timeline();
  ledger.begin_step(1, at(20s));
  for (int step = 1; step <= 5; ++step) ledger.step(step, at(20s + step * 10s));
  ledger.failed(at(75s));
  ledger.enter(Bucket::Running, at(80s));
  CHECK(text(ledger.timeline(at(90s))) ==
        "startup 0-10, running 10-20, productive 20-70, lost 70-75, restart 75-80, running 80-90");
  ledger.begin_step(4, at(90s));
  CHECK(text(ledger.timeline(at(100s))) ==
        "startup 0-10, running 10-20, productive 20-50, lost 50-75, restart 75-80, running 80-100");
}

TEST_CASE("timeline: a resume within the process leaves the step that was done again") {
  Ledger ledger = running_with_timeline();
  ledger.begin_step(1, at(10s));
  for (int step = 1; step <= 4; ++step) ledger.step(step, at(10s + step * 10s));
  ledger.step(3, at(60s));
  CHECK(text(ledger.timeline(at(60s))) ==
        "startup 0-10, productive 10-30, lost 30-50, productive 50-60");
}

TEST_CASE("timeline: what is booked elsewhere later has its place") {
  Ledger ledger = running_with_timeline();
  ledger.rebook_running(Bucket::Preparation, at(15s));
  ledger.enter(Bucket::Stopping, at(20s));
  ledger.rebook(Bucket::Stopping, Bucket::Restart, 3s, at(25s));
  CHECK(text(ledger.timeline(at(30s))) ==
        "startup 0-10, preparation 10-15, running 15-20, stopping 20-22, restart 22-25, "
        "stopping 25-30");
}

TEST_CASE("timeline: none is kept unless it is asked for") {
  Ledger ledger(kStart);
  ledger.enter(Bucket::Running, at(10s));
  CHECK(ledger.timeline(at(20s)).empty());
}

TEST_CASE("timeline: whatever happens, it adds up to the books, in bounded memory") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 20; ++round) {
    Ledger ledger(kStart);
    ledger.keep_timeline();
    TimePoint now = kStart;
    std::int64_t step = 0;
    for (int i = 0; i < 20'000; ++i) {
      now += Duration(below(1'000'000'000));
      const int what = below(100);
      if (what < 40) {
        ledger.step(++step, now);
      } else if (what < 50) {
        ledger.begin_step(step + 1, now);
      } else if (what < 70) {
        ledger.enter(Bucket::DataLoading, now);
      } else if (what < 90) {
        ledger.enter(Bucket::Running, now);
      } else if (what < 93) {
        ledger.checkpoint(step - below(20), now);
      } else if (what < 95) {
        ledger.failed(now);
        step -= std::min<std::int64_t>(step, below(30));
      } else if (what < 97) {
        ledger.enter(Bucket::Stopping, now);
        ledger.rebook(Bucket::Stopping, Bucket::Restart, 1s, now);
      } else if (what < 98) {
        ledger.rebook_running(Bucket::Preparation, now);
      } else if (what < 99) {
        ledger.end_steps(Bucket::Stopping, now);
      } else {
        step -= std::min<std::int64_t>(step, below(5));
      }
    }
    const auto spans = ledger.timeline(now);
    CHECK(spans.size() <= 2 * Timeline::kSpans);
    CHECK(spans.size() >= Timeline::kSpans / 2);
    check_closed(spans, ledger.summary(now));
  }
}

TEST_CASE("timeline: long spans stay, the shortest are joined") {
  Timeline timeline;
  timeline.spend(Bucket::Startup, 1h);
  for (int i = 0; i < 10'000; ++i) {
    timeline.spend(Bucket::Productive, 900ms);
    timeline.spend(Bucket::DataLoading, 100ms);
  }
  timeline.spend(Bucket::Restart, 1h);
  REQUIRE(timeline.spans().size() <= 2 * Timeline::kSpans);
  CHECK(timeline.spans().front().is_pure());
  CHECK(timeline.spans().front().length() == 1h);
  CHECK(timeline.spans().back().length() == 1h);
  Duration longest{};
  for (const auto& span : timeline.spans()) {
    if (span.length() < 1h) longest = std::max(longest, span.length());
  }
  CHECK_MESSAGE(longest < 60s, "the middle is still told in pieces of similar length");
}

TEST_CASE("step series: times between ends, or from a begin, and nothing over an interruption") {
  StepSeries series;
  series.end(1, 10s);  // since when is not known
  series.end(2, 12s);
  series.end(4, 18s);  // 3 was not told
  series.interrupt();
  series.end(5, 100s);
  series.begin(6, 110s);
  series.end(6, 111s);
  series.end(6, 115s);  // again
  series.end(3, 116s);
  std::string told;
  for (const auto& point : series.points()) {
    told += fmt::format("{}:{:g} ", point.last, std::chrono::duration<double>(point.min).count());
  }
  CHECK(told == "2:2 4:3 6:1 ");
}

TEST_CASE("step series: a million steps keep the shortest and the longest in bounded memory") {
  StepSeries series;
  Duration now{};
  series.begin(0, now);
  for (int step = 0; step < 1'000'000; ++step) {
    now += step == 777'777 ? 9s : step == 123'456 ? 1ms : 500ms;
    series.end(step, now);
  }
  const auto& points = series.points();
  CHECK(points.size() <= 2 * StepSeries::kPoints);
  CHECK(points.size() >= StepSeries::kPoints / 2);
  Duration min = 1h, max{}, sum{};
  std::uint64_t count = 0;
  for (const auto& point : points) {
    min = std::min(min, point.min);
    max = std::max(max, point.max);
    sum += point.sum;
    count += point.count;
  }
  CHECK(min == 1ms);
  CHECK(max == 9s);
  CHECK(sum == now);
  CHECK(count == 1'000'000);
}

TEST_CASE("step series: numbers of a hostile log overflow nothing") {
  StepSeries series;
  series.begin(std::numeric_limits<std::int64_t>::min(), 1s);
  series.end(std::numeric_limits<std::int64_t>::max(), 2s);
  series.end(std::numeric_limits<std::int64_t>::min(), 3s);
  CHECK(series.points().size() == 1);
}
