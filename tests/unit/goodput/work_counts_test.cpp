// SPDX-License-Identifier: Apache-2.0

#include "goodput/ledger/ledger.hpp"
#include "goodput/reports/summary.hpp"
#include "unit/goodput/moments.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <limits>
#include <numeric>
#include <random>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

/// Ten seconds of start-up, a first step that ends at 20 s, then steps 2 to 5 of 10 s.
Ledger five_steps() {
  Ledger ledger(kStart);
  ledger.enter(Bucket::Running, at(10s));
  for (int step = 1; step <= 5; ++step) ledger.step(step, at(10s + step * 10s));
  return ledger;
}

}  // namespace

TEST_CASE("work counts: steps, without the first one of a start and what is saved between them") {
  Ledger ledger = five_steps();
  ledger.enter(Bucket::Checkpoint, at(60s));
  ledger.enter(Bucket::Running, at(64s));
  ledger.enter(Bucket::Checkpoint, at(65s));  // its second part
  ledger.enter(Bucket::DataLoading, at(67s));
  ledger.enter(Bucket::Running, at(70s));
  ledger.step(6, at(80s));
  ledger.step(6, at(81s));  // told again
  const auto work = ledger.summary(at(81s)).work;
  CHECK(work.steps == 5);
  CHECK(work.stepping == 40s + 14s);
  CHECK(work.mean_step() == 10800ms);
  CHECK(work.saves == 1);
  CHECK(work.mean_save() == 6s);
  CHECK(work.checkpoint_interval() == 5.0);
}

TEST_CASE("work counts: what comes before the first step is loading, and nothing is no division") {
  Ledger ledger(kStart);
  ledger.enter(Bucket::Running, at(1s));
  ledger.enter(Bucket::Checkpoint, at(2s));
  ledger.enter(Bucket::Running, at(5s));
  ledger.step(1, at(6s));
  const auto work = ledger.summary(at(7s)).work;
  CHECK(work == WorkCounts{});
  CHECK_FALSE(work.mean_save().has_value());
  CHECK_FALSE(work.mean_step().has_value());
  CHECK_FALSE(work.checkpoint_interval().has_value());
}

TEST_CASE("work counts: a checkpoint that several ranks report is one, after a restart another") {
  Ledger ledger = five_steps();
  for (int rank = 0; rank < 4; ++rank) ledger.checkpoint(3, at(61s));
  ledger.checkpoint(-1, at(61s));
  ledger.checkpoint(5, at(61s));
  ledger.failed(at(62s));
  ledger.count_failure();
  ledger.count_failure();
  ledger.enter(Bucket::Running, at(70s));
  ledger.step(3, at(75s));
  ledger.checkpoint(5, at(76s));
  const auto work = ledger.summary(at(80s)).work;
  CHECK(work.checkpoints == 3);
  CHECK(work.failures == 1);
  CHECK(work.steps == 4);
}

TEST_CASE("work counts: numbers that jump are no steps that were done") {
  Ledger ledger = five_steps();
  ledger.step(std::numeric_limits<std::int64_t>::max(), at(70s));
  ledger.step(std::numeric_limits<std::int64_t>::min(), at(80s));
  ledger.step(std::numeric_limits<std::int64_t>::max(), at(90s));
  CHECK(ledger.summary(at(90s)).work.steps == 4);
}

TEST_CASE("ledger: a hang begins with the last step, and ends with the next one") {
  Ledger ledger = five_steps();
  ledger.hang(60s, at(120s));
  auto summary = ledger.summary(at(130s));
  CHECK(summary.of(Bucket::Hang) == 70s);
  CHECK(summary.of(Bucket::Productive) == 50s);
  ledger.hang(70s, at(130s));  // told again
  ledger.step(6, at(140s));
  summary = ledger.summary(at(150s));
  CHECK(summary.of(Bucket::Hang) == 80s);
  CHECK(summary.of(Bucket::Productive) == 60s);
  CHECK_MESSAGE(summary.work.mean_step() == 10s, "what hung is no time of steps");
}

TEST_CASE("ledger: a hang is not longer than what was told, nor than the time without a step") {
  Ledger ledger = five_steps();
  ledger.hang(20s, at(100s));
  CHECK(ledger.summary(at(100s)).of(Bucket::Hang) == 20s);
  Ledger other = five_steps();
  other.hang(std::chrono::hours(20), at(100s));
  CHECK(other.summary(at(100s)).of(Bucket::Hang) == 40s);
  other.hang(-5s, at(100s));
  Ledger stopping = five_steps();
  stopping.enter(Bucket::Stopping, at(60s));
  stopping.hang(20s, at(100s));
  CHECK(stopping.summary(at(100s)).of(Bucket::Hang) == 0s);
}

TEST_CASE("ledger: a hang is never lost or kept as work, wherever it was") {
  Ledger ledger = five_steps();
  ledger.enter(Bucket::DataLoading, at(65s));
  ledger.hang(50s, at(110s));
  ledger.failed(at(112s));
  ledger.enter(Bucket::Running, at(115s));
  ledger.step(3, at(125s));
  const auto summary = ledger.summary(at(125s));
  CHECK(summary.of(Bucket::Hang) == 52s);
  CHECK(summary.of(Bucket::DataLoading) == 0s);
  CHECK(summary.of(Bucket::Lost) == 30s);
  CHECK(summary.of(Bucket::Restart) == 3s);
}

TEST_CASE("ledger: goodput of a hung job falls, with and without somebody who sees that it hangs") {
  Ledger ledger = five_steps();
  ledger.step(6, at(70s));
  auto known = ledger;
  known.hang(60s, at(130s));
  double before = known.summary(at(130s)).goodput().value();
  for (int minute = 1; minute < 30; ++minute) {
    const double now = known.summary(at(130s + minute * 60s)).goodput().value();
    CHECK(now < before);
    before = now;
  }
  CHECK(known.summary(at(1h)).of(Bucket::Productive) == 60s);
}

TEST_CASE("ledger: with hangs, too, the buckets add up, and the timeline with them") {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Ledger ledger(kStart);
    ledger.keep_timeline();
    auto now = kStart;
    for (int fact = 0; fact < 60; ++fact) {
      now += Duration(static_cast<std::int64_t>(random() % 2'000'000'000));
      const auto step = static_cast<std::int64_t>(random() % 20);
      constexpr Bucket kBucketsEntered[] = {Bucket::Running, Bucket::Running, Bucket::Checkpoint,
                                            Bucket::DataLoading, Bucket::Stopping};
      switch (random() % 6) {
        case 0:
          ledger.hang(Duration(static_cast<std::int64_t>(random() % 9'000'000'000)), now);
          break;
        case 1:
          ledger.failed(now);
          break;
        case 2:
          ledger.checkpoint(step - 1, now);
          break;
        case 3:
          ledger.enter(kBucketsEntered[random() % std::size(kBucketsEntered)], now);
          break;
        case 4:
          ledger.rebook_running(Bucket::Preparation, now);
          break;
        default:
          ledger.step(step, now);
      }
      const auto summary = ledger.summary(now);
      REQUIRE(std::accumulate(summary.buckets.begin(), summary.buckets.end(), Duration{}) ==
              summary.elapsed);
      REQUIRE(*std::ranges::min_element(summary.buckets) >= Duration::zero());
      std::array<Duration, kBuckets> sums{};
      for (const auto& span : ledger.timeline(now)) {
        for (std::size_t i = 0; i < kBuckets; ++i) sums[i] += span.buckets[i];
      }
      REQUIRE(sums == summary.buckets);
    }
  }
}

TEST_CASE("summary: a share is rounded to the next tenth, and a half never up") {
  const auto shown = [](Duration productive, Duration rest) {
    Ledger::Summary summary;
    summary.elapsed = productive + rest, summary.last_step = 1;
    summary.buckets[static_cast<std::size_t>(Bucket::Productive)] = productive;
    summary.buckets[static_cast<std::size_t>(Bucket::Lost)] = rest;
    return bucket_share(Bucket::Productive, summary);
  };
  CHECK(shown(27'640ms, 72'360ms) == "27.6 %");
  CHECK(shown(27'680ms, 72'320ms) == "27.7 %");
  CHECK(shown(32'450ms, 67'550ms) == "32.4 %");
  CHECK(shown(1us, 100s) == "<0.1 %");
  CHECK(shown(100s, 1us) == ">99.9 %");
  CHECK(shown(100s, 0s) == "100.0 %");
}
