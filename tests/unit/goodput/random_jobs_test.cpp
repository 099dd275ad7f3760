// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "goodput/account/job_account.hpp"
#include "goodput/ledger/kept_steps.hpp"
#include "goodput/ledger/ledger.hpp"
#include "goodput/reports/summary.hpp"
#include "unit/goodput/moments.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <random>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

Duration median(std::vector<Duration> times) {
  std::ranges::sort(times);
  return times[(times.size() - 1) / 2];
}

/// A job of random steps, checkpoints, crashes and resumes, told to a ledger; and beside it what
/// became of each step, from the definition: a list of all that were done and not done again.
class RandomJob {
 public:
  RandomJob(unsigned seed, bool begins) : random_(seed), begins_(begins) {}

  void run() {
    const auto starts = 1 + random_() % 5;
    for (std::size_t start = 0; start < starts; ++start) {
      if (start > 0) crash();
      work();
    }
    if (random_() % 3 == 0) {
      crash();
      if (safe_) take_back(*safe_ + 1);
    }
  }

  Ledger ledger{TimePoint(1000s)};
  TimePoint now{1000s};
  Duration lost{};
  Duration productive() const {
    Duration all{};
    for (const auto& one : kept_) all += one.time;
    return all;
  }

 private:
  struct Done {
    std::int64_t step;
    Duration time;
  };
  Duration between(Duration least, Duration most) {
    return least + Duration(static_cast<std::int64_t>(
                       random_() % static_cast<std::uint64_t>((most - least).count())));
  }

  void take_back(std::int64_t step) {
    while (!kept_.empty() && kept_.back().step >= step) {
      lost += kept_.back().time;
      kept_.pop_back();
    }
  }

  void resume(std::int64_t step) {
    take_back(step);
    if (safe_ >= step) safe_ = step - 1;
    if (step <= first_) first_ = -1;
  }

  /// Any step that was done, or the next one.
  std::int64_t somewhere() {
    return kept_.empty() ? 1 : 1 + static_cast<std::int64_t>(random_() % (kept_.size() + 1));
  }

  void work() {
    ledger.enter(Bucket::Running, now += between(1s, 20s));
    now += between(1s, 20s);
    std::int64_t step = somewhere();
    // Back at the first one of all with everything saved, it may as well be the next epoch.
    if (step == 1 && !kept_.empty() && safe_ == kept_.back().step) step = 2;
    resume(step);
    const auto count = 2 + random_() % 30;
    std::vector<Duration> here;
    for (std::size_t i = 0; i < count; ++i, ++step) {
      // Within a start the same number again is the same step.
      // Back to the first one of all, they begin an epoch.
      const auto back =
          i > 3 && random_() % 20 == 0 ? std::max<std::int64_t>(somewhere(), 2) : step;
      if (kept_.empty() || back != kept_.back().step) resume(step = back);
      one_step(step, i == 0, here);
    }
  }

  void one_step(std::int64_t step, bool first, std::vector<Duration>& here) {
    resting_ = false;
    if (begins_) ledger.begin_step(step, now);
    const Duration time = between(800ms, 1200ms);
    now += time + (first ? between(2s, 30s) : 0s);
    ledger.step(step, now);
    if (first) {
      first_ = step;
      kept_.push_back({step, usual_.empty() ? Duration() : median(usual_)});
    } else {
      kept_.push_back({step, time});
      usual_.push_back(time);
      if (usual_.size() > UsualStep::kKept) usual_.erase(usual_.begin());
      if (here.size() < 8) here.push_back(time);
      settle_first(here);
    }
    if (random_() % 6 == 0) save(step);
  }

  /// It took as long as the others of its start, as they took longer to get there.
  void settle_first(const std::vector<Duration>& here) {
    if (first_ >= 0) std::ranges::find(kept_, first_, &Done::step)->time = median(here);
    if (here.size() == 8) first_ = -1;
  }

  void save(std::int64_t step) {
    ledger.enter(Bucket::Checkpoint, now);
    ledger.enter(Bucket::Running, now += between(1ms, 3s));
    ledger.checkpoint(step, now);
    safe_ = std::max(safe_, std::optional(step));
    resting_ = true;
  }

  void crash() {
    const Duration broken_off = between(0s, 3s);
    const Duration most = usual_.empty() ? broken_off : median(usual_);
    // Right after a checkpoint no step had begun.
    if (!resting_) lost += std::min(broken_off, most);
    ledger.failed(now += broken_off);
  }

  std::mt19937_64 random_;
  bool begins_, resting_ = false;
  std::vector<Done> kept_;
  std::vector<Duration> usual_;
  std::int64_t first_ = -1;
  std::optional<std::int64_t> safe_;
};

}  // namespace

TEST_CASE("random jobs: productive is the time of the steps that are kept, lost that of the rest") {
  for (unsigned seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    RandomJob job(seed, true);
    job.run();
    const auto summary = job.ledger.summary(job.now);
    REQUIRE(sum(summary) == summary.elapsed);
    REQUIRE(summary.of(Bucket::Productive) == job.productive());
    REQUIRE(summary.of(Bucket::Lost) == job.lost);
    REQUIRE(summary.of(Bucket::Unexplained) == 0s);
  }
}

TEST_CASE("ledger: steps that a checkpoint covers are lost where the job does them again") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  for (int pass = 0; pass < 3; ++pass) {
    ledger.enter(Bucket::Running, now += 5s);
    for (int step = 1; step <= 110; ++step) {
      ledger.step(step, now += 1s);
      if (step % 50 == 0) ledger.checkpoint(step, now);
    }
    if (pass < 2) ledger.failed(now);
  }
  const auto summary = ledger.summary(now);
  CHECK(summary.of(Bucket::Productive) == 110s);
  CHECK(summary.of(Bucket::Lost) == 220s);
  CHECK(summary.elapsed == 345s);
}

TEST_CASE("ledger: what a resume showed to be kept is lost, too, where the job does it again") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  for (const int from : {1, 51, 1}) {
    ledger.enter(Bucket::Running, now);
    for (int step = from; step <= 100; ++step) ledger.step(step, now += 1s);
    ledger.failed(now);
  }
  CHECK(ledger.summary(now).of(Bucket::Productive) == 100s);
  CHECK(ledger.summary(now).of(Bucket::Lost) == 150s);
}

TEST_CASE(
    "ledger: numbers that begin again in workers that go on are epochs, not work done again") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  ledger.enter(Bucket::Running, now);
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (int step = 0; step < 50; ++step) ledger.step(step, now += 1s);
    ledger.checkpoint(49, now);
  }
  auto summary = ledger.summary(now);
  CHECK(summary.of(Bucket::Productive) == 200s);
  CHECK(summary.of(Bucket::Lost) == 0s);
  CHECK(summary.last_step == 199);
  CHECK(summary.begun_again == 3);
  CHECK(summary_text(summary).contains("Step numbers began again 3 times"));
  for (int step = 0; step < 20; ++step) ledger.step(step, now += 1s);
  ledger.failed(now);
  ledger.enter(Bucket::Running, now);
  for (int step = 0; step < 50; ++step) ledger.step(step, now += 1s);  // that epoch again
  summary = ledger.summary(now);
  CHECK(summary.of(Bucket::Productive) == 250s);
  CHECK(summary.of(Bucket::Lost) == 20s);
  CHECK(summary.goodput() == doctest::Approx(250.0 / 270));
}

TEST_CASE("ledger: a start that warms up before it loads its checkpoint resumed where that was") {
  for (const bool begins : {false, true}) {
    for (const int apart : {1, 5}) {
      Ledger ledger(TimePoint(0s));
      ledger.keep_timeline();
      TimePoint now(0s);
      const auto steps = [&](int from, int to) {
        for (int step = from; step <= to; ++step) {
          if (begins && apart == 1) ledger.begin_step(step, now);
          now += 1s;
          if (step % apart == 0) ledger.step(step, now);
        }
      };
      ledger.enter(Bucket::Running, now);
      steps(1, 50);
      ledger.checkpoint(50, now);
      steps(51, 100);
      Duration lost{};
      for (int start = 0; start < 3; ++start) {
        ledger.failed(now);
        ledger.enter(Bucket::Running, now);
        steps(1, 10);
        steps(51, 100);
        lost += 60s - (apart - 1) * 1s;  // before the first step that a start tells: start-up
        const auto summary = ledger.summary(now);
        CHECK(summary.of(Bucket::Productive) == 100s);
        CHECK(summary.of(Bucket::Lost) == lost);
        CHECK(summary.goodput() ==
              doctest::Approx(100s / std::chrono::duration<double>(now - TimePoint(0s))));
        CHECK(summary.last_checkpoint == 50);
      }
      Duration spent{};
      for (const auto& span : ledger.timeline(now)) spent += span.of(Bucket::Lost);
      CHECK(spent == lost);
    }
  }
}

TEST_CASE("ledger: steps that are told less often from some point on were all done") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  ledger.enter(Bucket::Running, now);
  for (int step = 1; step <= 100; ++step) ledger.step(step, now += 1s);
  ledger.failed(now);
  ledger.enter(Bucket::Running, now);
  for (int step = 1; step <= 100; ++step) {
    now += 1s;
    if (step < 10 || step % 10 == 0) ledger.step(step, now);
  }
  CHECK(ledger.summary(now).of(Bucket::Productive) == 100s);
  CHECK(ledger.summary(now).of(Bucket::Lost) == 100s);
}

TEST_CASE("ledger: steps of different length hide no stall") {
  std::mt19937_64 random(5);
  for (const auto shorter : {300ms, 500ms, 900ms}) {
    Ledger ledger(TimePoint(0s));
    TimePoint now(0s);
    Duration training{};
    ledger.enter(Bucket::Running, now);
    for (int step = 0; step < 1000; ++step) {
      const Duration took = random() % 5 < 2 ? Duration(shorter) : Duration(1s);
      training += took;
      ledger.step(step, now += took + (step % 100 == 99 ? 25s : 0s));
    }
    const auto summary = ledger.summary(now);
    CHECK(summary.of(Bucket::Unexplained) >= 240s);
    CHECK(summary.of(Bucket::Productive) <= training + 1s);  // of the first step
    CHECK(summary.of(Bucket::Productive) + summary.of(Bucket::Unexplained) >= training);
    // Steps of half the time leave it open what the others did.
    CHECK((summary.of(Bucket::Unexplained) <= 251s) == (shorter == 900ms));
  }
}

TEST_CASE("ledger: an epoch that ended in a checkpoint is followed by the next one") {
  for (const int epochs : {1, 3}) {
    Ledger ledger(TimePoint(0s));
    TimePoint now(0s);
    const auto epoch = [&] {
      for (int step = 0; step < 100; ++step) ledger.step(step, now += 100ms);
      ledger.checkpoint(99, now);
    };
    ledger.enter(Bucket::Running, now);
    for (int i = 0; i < epochs; ++i) epoch();
    ledger.failed(now);  // in its evaluation
    ledger.enter(Bucket::Running, now);
    for (int i = 0; i < 3; ++i) epoch();
    const auto summary = ledger.summary(now);
    CHECK(summary.of(Bucket::Lost) == 0s);
    CHECK(summary.last_step == 100 * (epochs + 3) - 1);
    // One epoch may have begun again from nothing.
    CHECK(summary.goodput().has_value() == (epochs == 3));
    CHECK(summary.goodput_at_least() <= 3.0 / (epochs + 3) + (epochs == 3 ? 1 : 0));
  }
}

TEST_CASE("ledger: where only each so manieth step is told, all of them are training") {
  for (const int apart : {1, 10, 50}) {
    Ledger ledger(TimePoint(0s));
    TimePoint now(0s);
    std::int64_t done = 0;
    for (int start = 0; start < 4; ++start) {
      ledger.enter(Bucket::Running, now);
      now += 1s;
      for (int i = 0; i < 230; ++i) {
        now += 100ms;
        if (++done % apart == 0) ledger.step(done, now);
      }
      ledger.checkpoint(done, now);
      ledger.failed(now);
    }
    const auto summary = ledger.summary(now);
    CHECK(summary.of(Bucket::Productive) >= 91s - 100ms * apart);
    CHECK(summary.of(Bucket::Productive) <= 92s);
    CHECK(summary.of(Bucket::Unexplained) == 0s);
  }
  Ledger epochs(TimePoint(0s));
  TimePoint now(0s);
  epochs.enter(Bucket::Running, now);
  for (int i = 0; i < 300; ++i) {
    now += 100ms;
    if (i % 50 % 10 == 9) epochs.step(i % 50, now);
  }
  CHECK(epochs.summary(now).last_step == 299);
  CHECK(epochs.summary(now).of(Bucket::Unexplained) == 0s);
  CHECK(epochs.summary(now).of(Bucket::Productive) >= 29s);
}

TEST_CASE("ledger: the exit of a worker that failed is no stall, however long it lasts") {
  for (const auto exit : {Duration(1400ms), Duration(12s), Duration(60s)}) {
    Ledger ledger(TimePoint(0s));
    TimePoint now(0s);
    ledger.enter(Bucket::Running, now);
    for (int step = 0; step < 50; ++step) ledger.step(step, now += 100ms);
    auto told = ledger, killed = ledger;
    CHECK(ledger.failed(now += exit) == exit - 100ms);
    CHECK(ledger.summary(now).of(Bucket::Restart) == exit - 100ms);
    CHECK(told.failed(now, Bucket::Restart, exit - 70ms) == exit - 70ms);
    CHECK(told.summary(now).of(Bucket::Restart) == exit - 70ms);
    CHECK(told.summary(now).of(Bucket::Lost) == 70ms);
    CHECK(killed.failed(now, Bucket::Restart, 0s) == 0s);  // it had waited for something
    CHECK(killed.summary(now).of(Bucket::Stalled) == exit - 100ms);
    CHECK(killed.summary(now).of(Bucket::Lost) == 100ms);
  }
}

TEST_CASE("ledger: where a save or a resume cannot be told, goodput has bounds") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  bool loads = true;
  SUBCASE("its load is seen") {}
  SUBCASE("or only the saves") {
    loads = false;
  }
  for (int start = 0; start < 3; ++start) {
    ledger.enter(Bucket::Running, now);
    if (loads) ledger.untold_checkpoint(now);
    for (int step = 0; step < 25; ++step) {
      ledger.step(step, now += 1s);
      if (step % 10 == 9) ledger.untold_checkpoint(now);
    }
    if (start == 2) break;
    ledger.failed(now);
    const auto summary = ledger.summary(now);
    CHECK(summary.of(Bucket::Lost) == 5s * (start + 1));
    CHECK(summary.doubtful >= 20s);
  }
  const auto summary = ledger.summary(now);
  CHECK(summary.of(Bucket::Productive) == 65s);
  CHECK(summary.of(Bucket::Lost) == 10s);
  CHECK_FALSE(summary.goodput().has_value());
  CHECK(summary.goodput_at_most() == doctest::Approx(65.0 / 75));
  CHECK_MESSAGE(summary.goodput_at_least() == doctest::Approx(25.0 / 75), "the last start alone");
  CHECK(summary_text(summary).starts_with("goodput between 33.3 % and 86.7 % of 1 min 15 s"));
  CHECK(summary_text(summary).contains("6 saves could not be told"));
  CHECK(summary_json(summary).at("untold_saves") == 6);
}

TEST_CASE("ledger: a job that knows where it resumed loses nothing by saves that cannot be told") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  for (const int from : {0, 10}) {
    ledger.enter(Bucket::Running, now);
    ledger.untold_checkpoint(now);
    for (int step = from; step < from + 15; ++step) {
      ledger.step(step, now += 1s);
      if (step == 9) ledger.untold_checkpoint(now);
    }
    if (from == 0) ledger.failed(now);
  }
  CHECK(ledger.summary(now).of(Bucket::Lost) == 5s);
  CHECK(ledger.summary(now).goodput() == doctest::Approx(25.0 / 30));
}

TEST_CASE("kept steps: of a million, what lies behind any is exact to its 512th part") {
  KeptSteps kept;
  for (int step = 1; step <= 1'000'000; ++step) kept.add(step, {1, 1ms + Duration(step)});
  const auto exact = [](std::int64_t step) {
    const std::int64_t count = 1'000'000 - step;
    return 1ms * count + Duration((1'000'001 + step) * count / 2);
  };
  for (std::int64_t step = 999'999; step > 0; step -= 1 + (1'000'000 - step) / 7) {
    CAPTURE(step);
    const double off = to_seconds(kept.above(step).time) - to_seconds(exact(step));
    CHECK(std::abs(off) <= to_seconds(exact(step)) / 512);
    const Duration all = kept.above(0).time;
    auto copy = kept;
    const Duration back = copy.take_back(step + 1).time;
    CHECK(back == kept.above(step).time);
    CHECK(back + copy.above(0).time == all);
  }
  CHECK(kept.last() == 1'000'000);
}

TEST_CASE(
    "ledger: what the first step takes beyond the usual time is no work, live and in the end") {
  for (const bool begins : {false, true}) {
    CAPTURE(begins);
    Ledger ledger(TimePoint(0s));
    ledger.enter(Bucket::Running, TimePoint(0s));
    if (begins) ledger.begin_step(1, TimePoint(5s));
    CHECK(ledger.summary(TimePoint(60s)).of(Bucket::Productive) == 0s);
    ledger.step(1, TimePoint(105s));
    ledger.step(2, TimePoint(107s));
    CHECK(ledger.summary(TimePoint(107s)).of(Bucket::Productive) == 4s);
    for (int step = 3; step <= 10; ++step) ledger.step(step, TimePoint(105s + step * 1s));
    const auto summary = ledger.summary(TimePoint(115s));
    CHECK(summary.of(Bucket::Productive) == 10s);
    CHECK(summary.of(Bucket::Unexplained) == 1s);  // of the second one
    CHECK(summary.of(Bucket::Running) == (begins ? 5s : 104s));
    CHECK(summary.of(Bucket::Running) + summary.of(Bucket::Preparation) == 104s);
    ledger.failed(TimePoint(115s));
    ledger.enter(Bucket::Running, TimePoint(120s));
    ledger.step(11, TimePoint(150s));
    CHECK(ledger.summary(TimePoint(150s)).of(Bucket::Productive) == 11s);
    CHECK(ledger.summary(TimePoint(150s)).repeated == 29s);
  }
}

TEST_CASE("ledger: what a step takes far beyond its pace is not explained, live and after it") {
  Ledger ledger(TimePoint(0s));
  ledger.enter(Bucket::Running, TimePoint(0s));
  for (int step = 1; step <= 50; ++step) ledger.step(step, TimePoint(step * 1s));
  CHECK(ledger.summary(TimePoint(51s) + 400ms).of(Bucket::Unexplained) == 0s);
  CHECK(ledger.summary(TimePoint(90s)).of(Bucket::Unexplained) == 39s);
  CHECK(ledger.summary(TimePoint(90s)).of(Bucket::Stalled) == 0s);
  auto late = ledger;
  ledger.step(51, TimePoint(151s));
  for (int step = 52; step <= 100; ++step) ledger.step(step, TimePoint(100s + step * 1s));
  const auto summary = ledger.summary(TimePoint(200s));
  CHECK(summary.of(Bucket::Unexplained) == 100s);
  CHECK(summary.of(Bucket::Productive) == 100s);
  CHECK_FALSE(summary.goodput().has_value());
  CHECK(summary.goodput_at_least() == 0.5);
  CHECK(summary.goodput_at_most() == 1.0);
  const auto text = summary_text(summary, false);
  CHECK(text.starts_with("goodput between 50.0 % and 100.0 % of 3 min 20 s"));
  CHECK(text.contains("  1 min 40 s between steps were not explained"));
  for (int step = 51; step <= 150; ++step) late.step(step, TimePoint(150s));
  CHECK_MESSAGE(late.summary(TimePoint(150s)).of(Bucket::Unexplained) == 0s, "they were told late");
  ledger.failed(TimePoint(200s));
  ledger.enter(Bucket::Running, TimePoint(200s));
  ledger.begin_step(1, TimePoint(200s));
  CHECK_MESSAGE(ledger.summary(TimePoint(200s)).of(Bucket::Unexplained) == 0s,
                "lost with its step");
  CHECK(ledger.summary(TimePoint(200s)).of(Bucket::Lost) == 200s);
}

namespace {

Ledger::Summary summary_of(const std::vector<double>& steps) {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  ledger.enter(Bucket::Running, now);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    ledger.step(static_cast<std::int64_t>(i), now += from_seconds(steps[i]));
    if (i % 50 == 0) REQUIRE(sum(ledger.summary(now)) == now.time_since_epoch());
  }
  const auto summary = ledger.summary(now);
  CHECK(std::ranges::min(summary.buckets) >= 0s);
  CHECK(sum(summary) == summary.elapsed);
  return summary;
}

}  // namespace

TEST_CASE("ledger: a longer untold gap between steps never raises goodput") {
  for (const int apart : {5, 10, 20}) {
    double last = 1;
    for (const double gap : {0.03, 0.06, 0.1, 0.2, 0.4, 0.9, 1.3, 1.5, 3.0, 10.0}) {
      CAPTURE(apart);
      CAPTURE(gap);
      std::vector<double> steps;
      for (int i = 0; i < 20 * apart; ++i) steps.push_back(0.05 + (i % apart == 0 && i > 0) * gap);
      const auto summary = summary_of(steps);
      const double all = 20 * apart * 0.05, truth = all / (all + 19 * gap);
      CHECK(summary.goodput_at_least() == doctest::Approx(truth).epsilon(0.02));
      CHECK(summary.goodput_at_most() > 0.98);
      CHECK(summary.goodput_at_least() < last);
      last = summary.goodput_at_least();
    }
  }
}

TEST_CASE("ledger: a gap after each second step is no pace") {
  for (const double gap : {0.03, 0.06, 0.1, 0.2, 0.3, 0.6, 3.0}) {
    for (const int most : {3, 5, 7, 16, 31, 61, 500}) {
      CAPTURE(gap);
      CAPTURE(most);
      std::vector<double> steps;
      double training = 0, all = 0;
      for (int i = 0; i < most; ++i) {
        steps.push_back(0.05 + (i % 2 == 0 && i > 0) * gap);
        all += steps.back();
        training += 0.05;
      }
      const auto summary = summary_of(steps);
      CHECK_FALSE(summary.goodput().has_value());
      CHECK(summary.goodput_at_least() == doctest::Approx(training / all).epsilon(0.03));
      CHECK(summary.goodput_at_most() > 0.9);
    }
  }
}

TEST_CASE("ledger: faster steps after a gap do not explain it") {
  for (const double faster : {0.04, 0.02, 0.012}) {
    std::vector<double> steps(40, 0.1);
    steps.push_back(4 + faster);
    steps.resize(140, faster);
    const auto summary = summary_of(steps);
    CHECK_FALSE(summary.goodput().has_value());
    CHECK(summary.of(Bucket::Unexplained) >= 3900ms);
  }
}

TEST_CASE("ledger: long steps are a range that holds the truth, and a new pace is one") {
  std::vector<double> steps(1000, 1.0);
  for (std::size_t at = 16; at < steps.size(); at += 16) steps[at] = 12;
  CHECK(summary_of(steps).goodput_at_most() > 0.99);
  CHECK(summary_of(steps).goodput_at_least() == doctest::Approx(1000.0 / 1682).epsilon(0.01));
  for (std::size_t at = 0; at < steps.size(); ++at) steps[at] = at % 5 == 4 ? 8 : 1;
  CHECK(summary_of(steps).goodput_at_most() > 0.99);
  for (std::size_t at = 0; at < steps.size(); ++at) steps[at] = at < 500 ? 1.0 : 8.0;
  CHECK_MESSAGE(summary_of(steps).goodput_at_least() > 0.99, "another pace is usual soon");
  CHECK(summary_of(steps).of(Bucket::Unexplained) == 0s);
}

TEST_CASE("ledger: the time from a step to its checkpoint is the save, whoever tells it how") {
  enum class How { Number, SoFar, BeforeItsEnd, Begins, Phase };
  for (const auto how : {How::Number, How::SoFar, How::BeforeItsEnd, How::Begins, How::Phase}) {
    CAPTURE(static_cast<int>(how));
    Ledger ledger(TimePoint(0s));
    TimePoint now(0s);
    ledger.keep_timeline();
    ledger.enter(Bucket::Running, now);
    for (int step = 1; step <= 50; ++step) {
      if (how == How::Begins) ledger.begin_step(step, now);
      now += 100ms;
      const bool saves = step % 10 == 0;
      if (how != How::BeforeItsEnd) ledger.step(step, now);
      if (how == How::Phase && saves) ledger.enter(Bucket::Checkpoint, now, "save");
      if (saves) ledger.checkpoint(how == How::SoFar ? -1 : step, now += 1500ms);
      if (how == How::Phase && saves) ledger.enter(Bucket::Running, now);
      if (how == How::BeforeItsEnd) ledger.step(step, now);
    }
    const auto summary = ledger.summary(now);
    CHECK(summary.of(Bucket::Checkpoint) == 7500ms);
    CHECK(summary.restoring == 0s);
    CHECK(summary.of(Bucket::Productive) + summary.of(Bucket::Running) +
              summary.of(Bucket::Preparation) ==
          5s);
    CHECK(summary.goodput() == doctest::Approx(5.0 / 12.5).epsilon(0.01));
    CHECK(*summary.work.mean_save() == 1500ms);
    CHECK(*summary.work.mean_step() == 100ms);
    Duration saved{};
    for (const auto& span : ledger.timeline(now)) saved += span.of(Bucket::Checkpoint);
    CHECK(saved == 7500ms);
  }
}

TEST_CASE("ledger: a save in the background takes none of the time of a step") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  ledger.enter(Bucket::Running, now);
  for (int step = 1; step <= 100; ++step) {
    ledger.step(step, now += 100ms);
    if (step % 10 == 5) ledger.checkpoint(step, now + 60ms);      // within the next step
    if (step % 10 == 8) ledger.checkpoint(step - 3, now + 60ms);  // or later
  }
  CHECK(ledger.summary(now).of(Bucket::Checkpoint) == 0s);
  CHECK(ledger.summary(now).of(Bucket::Productive) == 10s);
}

TEST_CASE("ledger: beside steps that vary a save may be in the background or not") {
  for (const bool background : {false, true}) {
    std::mt19937_64 random(7);
    Ledger ledger(TimePoint(0s));
    TimePoint now(0s);
    Duration training{}, saving{};
    ledger.enter(Bucket::Running, now);
    for (int step = 1; step <= 400; ++step) {
      const Duration took(20ms + Duration(static_cast<std::int64_t>(random() % 160'000'000)));
      now += took;
      training += step > 1 ? took : 0s;
      ledger.step(step, now);
      if (step % 4 != 0) continue;
      const Duration save = 60ms;
      ledger.checkpoint(step, now + save);
      if (background) continue;
      now += save;
      saving += save;
    }
    const auto summary = ledger.summary(now);
    CHECK(sum(summary) == summary.elapsed);
    CHECK(summary.of(Bucket::Productive) <= training * 101 / 100);
    CHECK(summary.of(Bucket::Productive) + summary.of(Bucket::Unexplained) >= training * 95 / 100);
    CHECK(summary.of(Bucket::Checkpoint) <= saving + 500ms);
  }
}

TEST_CASE("ledger: what came before a failure is explained by what comes after it") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  for (int start = 0; start < 6; ++start) {
    ledger.enter(Bucket::Running, now);
    for (int step = 1; step <= 4; ++step) {
      now += 50ms + (step > 1 && start < 3 ? 1s : 0s);
      ledger.step(start * 4 + step, now);
    }
    ledger.checkpoint(start * 4 + 4, now);
    ledger.failed(now);
  }
  const auto summary = ledger.summary(now);
  CHECK(sum(summary) == summary.elapsed);
  CHECK(summary.of(Bucket::Productive) <= 1200ms);
  CHECK(summary.of(Bucket::Unexplained) >= 9s);
}

TEST_CASE("ledger: no step is lost that had not begun") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  ledger.enter(Bucket::Running, now);
  for (int step = 1; step <= 20; ++step) ledger.step(step, now += 50ms);
  ledger.checkpoint(20, now += 1s);
  SUBCASE("it exits, and does not tell since when") {
    CHECK(ledger.failed(now += 30ms) == 30ms);
  }
  SUBCASE("or it tells") {
    CHECK(ledger.failed(now += 700ms, Bucket::Stopping, 698ms) == 700ms);
  }
  CHECK(ledger.summary(now).of(Bucket::Lost) == 0s);
  CHECK(ledger.summary(now).of(Bucket::Checkpoint) == 1s);
  CHECK(ledger.summary(now).of(Bucket::Productive) == 1s);
}

TEST_CASE("ledger: what the first step takes beyond others is preparation if its begin was told") {
  for (const bool begins : {false, true}) {
    Ledger ledger(TimePoint(0s));
    ledger.enter(Bucket::Running, TimePoint(0s));
    if (begins) ledger.begin_step(1, TimePoint(5s));
    for (int step = 1; step <= 50; ++step) ledger.step(step, TimePoint(64s + step * 1s));
    const auto summary = ledger.summary(TimePoint(114s));
    CHECK(summary.of(Bucket::Running) == (begins ? 5s : 64s));
    CHECK(summary.of(Bucket::Preparation) == (begins ? 59s : 0s));
    CHECK(summary.of(Bucket::Productive) == 50s);
  }
}

TEST_CASE("ledger: half of the ranks, twice the time: the second figure shows what is missing") {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  std::int64_t step = 0;
  for (const int ranks : {8, 4}) {
    ledger.world(ranks);
    ledger.enter(Bucket::Running, now);
    for (int i = 0; i < 100; ++i) ledger.step(++step, now += ranks == 8 ? 1s : 2s);
    CHECK(ledger.summary(now).at_full_pace.has_value() == (ranks == 4));
    if (ranks == 8) ledger.failed(now);
  }
  const auto summary = ledger.summary(now);
  CHECK(summary.of(Bucket::Productive) == 300s);
  CHECK(summary.at_full_pace == 200s);
}

TEST_CASE("safe step: rank 0 speaks for all, but where others save, too, all have to") {
  SafeStep safe;
  CHECK_FALSE(safe.done(2, 50).has_value());
  CHECK(safe.done(0, 100) == 50);
  CHECK(safe.done(2, 100) == 100);
  safe.start();
  CHECK(safe.done(0, 150) == 150);
}
