// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/monitor.hpp"

#include "goodput/compat/goodput_calculator.hpp"

#include <doctest/doctest.h>
#include <numeric>
#include <random>

namespace elastrun::goodput {
namespace {

using namespace std::chrono_literals;

/// A ledger whose facts a monitor hears of as they come.
struct MonitoredJob {
  TimePoint now{1000s};
  Ledger ledger{now};
  Monitor monitor;
  explicit MonitoredJob(std::vector<Duration> sizes) : monitor(std::move(sizes)) {}

  Ledger::Summary summary() const { return ledger.summary(now); }
  MonitoredJob& told() {
    monitor.take(summary());
    return *this;
  }
  MonitoredJob& pass(Duration time) {
    now += time;
    return *this;
  }
  MonitoredJob& enter(Bucket bucket) {
    ledger.enter(bucket, now);
    return told();
  }
  MonitoredJob& step(std::int64_t number) {
    ledger.step(number, now);
    return told();
  }
  MonitoredJob& steps(std::int64_t first, std::int64_t last, Duration each) {
    for (auto number = first; number <= last; ++number) pass(each).step(number);
    return *this;
  }
  WindowView view(std::size_t window = 0) const { return monitor.view(window, summary()); }
};

Duration sum(const WindowView& view) {
  return std::accumulate(view.buckets.begin(), view.buckets.end(), Duration{});
}

}  // namespace

TEST_CASE("monitor: a young job has what there is of it, in the order of sizes, each once") {
  MonitoredJob job({60s, 10s, 60s});
  CHECK(job.monitor.windows() == 2);
  job.pass(4s);
  CHECK(job.view(1).covered == 4s);
  CHECK(job.view(1).of(Bucket::Startup) == 4s);
  CHECK(job.view(1).size == 60s);
  CHECK(!job.view(1).share().known());
}

TEST_CASE("monitor: a window has what happened in it, and a hang lowers its goodput") {
  MonitoredJob job({100s});
  job.pass(10s).enter(Bucket::Running).pass(10s).step(1).steps(2, 101, 1s);
  CHECK(job.view().covered == job.view().size);
  CHECK(job.view().of(Bucket::Productive) == 100s);
  CHECK(job.view().share().known() == 1.0);
  job.enter(Bucket::Checkpoint).pass(25s);  // nobody tells anything
  CHECK(job.view().of(Bucket::Checkpoint) == 25s);
  CHECK(job.view().of(Bucket::Productive) == 75s);
  CHECK(job.view().share().known() == doctest::Approx(0.75));
  job.pass(1h);
  CHECK(job.view().of(Bucket::Checkpoint) == 100s);
}

TEST_CASE("monitor: where nobody reports steps the goodput of a window is not known") {
  MonitoredJob job({10s});
  job.enter(Bucket::Running).pass(30s);
  CHECK(!job.view().share().known());
  CHECK(job.view().share().most() == 1.0);
}

TEST_CASE("monitor: lost work is lost where it was done") {
  MonitoredJob job({60s, 600s});
  job.enter(Bucket::Running).step(0).steps(1, 200, 1s);
  job.ledger.checkpoint(100, job.now);
  job.told().steps(201, 210, 1s);
  job.ledger.failed(job.now);  // steps 101 to 210 are undone
  job.told().pass(20s).enter(Bucket::Running).pass(5s).step(101);
  CHECK(job.view(0).of(Bucket::Lost) == 35s);  // of 110
  CHECK(job.view(0).of(Bucket::Restart) == 20s);
  CHECK(job.view(0).of(Bucket::Running) == 4s);
  CHECK(job.view(0).of(Bucket::Productive) == 1s);
  CHECK(job.view(1).of(Bucket::Lost) == 110s);
  CHECK(job.view(1).of(Bucket::Productive) == 101s);
  job.steps(102, 150, 1s);
  CHECK(job.view(0).of(Bucket::Lost) == 0s);  // it lies before the window
  CHECK(job.view(0).of(Bucket::Productive) == 50s);
  CHECK(job.view(0).of(Bucket::Restart) == 6s);
}

TEST_CASE("monitor: its windows add up and hold nothing negative, whatever happens") {
  std::mt19937 random(7);
  const auto any = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (int round = 0; round < 200; ++round) {
    MonitoredJob job({3s, 40s, 1000s});
    int number = 0;
    for (int fact = 0; fact < 300; ++fact) {
      job.pass(std::chrono::milliseconds(any(1500)));
      switch (any(8)) {
        case 0:
          job.ledger.enter(static_cast<Bucket>(any(kBuckets)), job.now);
          break;
        case 1:
          job.ledger.failed(job.now);
          break;
        case 2:
          job.ledger.checkpoint(number - any(5), job.now);
          break;
        case 3:
          job.ledger.rebook(Bucket::Stopping, Bucket::Restart, 1s, job.now);
          break;
        case 4:
          job.ledger.enter(Bucket::Running, job.now);
          break;
        default:
          number = std::max(0, number + (any(20) == 0 ? -7 : 1));
          job.ledger.step(number, job.now);
      }
      if (any(3) != 0) job.told();
      for (std::size_t window = 0; window < 3; ++window) {
        const auto view = job.view(window);
        REQUIRE(sum(view) == view.covered);
        for (const auto time : view.buckets) REQUIRE(time >= 0s);
      }
    }
  }
}

TEST_CASE("monitor: a split of the job adds up to the whole, to the resolution") {
  MonitoredJob job({100s});
  std::array<Duration, kBuckets> total{};
  job.enter(Bucket::Running).step(0);
  for (int part = 0; part < 20; ++part) {
    job.steps(part * 100, part * 100 + 69, 1s).enter(Bucket::DataLoading).pass(30s);
    job.enter(Bucket::Running);
    const auto view = job.view();
    for (std::size_t i = 0; i < kBuckets; ++i) total[i] += view.buckets[i];
  }
  const auto all = job.summary();
  for (std::size_t i = 0; i < kBuckets; ++i) {
    CHECK(std::chrono::abs(total[i] - all.buckets[i]) <= 20 * (100s / 120));
  }
}

TEST_CASE("monitor: it asks for a summary only when one tells more") {
  MonitoredJob job({120s, 1h});
  CHECK(!job.monitor.is_due(500ms));
  CHECK(job.monitor.is_due(1s));
  job.pass(1s).told();
  CHECK(!job.monitor.is_due(1900ms));
}

TEST_CASE("step pace: the usual time of a step, and how far steps are from it") {
  StepPace pace;
  TimePoint now{};
  pace.step(0, now);
  CHECK(!pace.ideal());
  CHECK(!pace.deviation());
  for (int number = 10; number <= 500; number += 10) pace.step(number, now += 1s);
  CHECK(*pace.ideal() == doctest::Approx(0.1));
  CHECK(*pace.deviation() == doctest::Approx(0));
  pace.step(510, now += 11s);
  CHECK(*pace.ideal() == doctest::Approx(0.1));
  CHECK(*pace.deviation() == doctest::Approx(1.0 / 51));
  pace.interrupt();
  pace.step(511, now += 1h);
  pace.step(400, now += 1h);
  CHECK(*pace.deviation() == doctest::Approx(1.0 / 51));
  for (int number = 401; number < 3000; ++number) pace.step(number, now += 2s);
  CHECK(*pace.ideal() == doctest::Approx(2));
}

}  // namespace elastrun::goodput
