// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "goodput/account/safe_step.hpp"
#include "goodput/ledger/kept_steps.hpp"
#include "goodput/ledger/ledger.hpp"
#include "goodput/ledger/usual_step.hpp"
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
  }

  void crash() {
    const Duration broken_off = between(0s, 3s);
    const Duration most = usual_.empty() ? broken_off : median(usual_);
    lost += std::min(broken_off, most);
    ledger.failed(now += broken_off);
  }

  std::mt19937_64 random_;
  bool begins_;
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
    REQUIRE(summary.of(Bucket::Stalled) == 0s);
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
    CHECK(ledger.summary(now).of(Bucket::Stalled) >= 240s);
    CHECK(ledger.summary(now).of(Bucket::Stalled) <= 251s);
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
    CHECK(summary.of(Bucket::Stalled) == 0s);
  }
  Ledger epochs(TimePoint(0s));
  TimePoint now(0s);
  epochs.enter(Bucket::Running, now);
  for (int i = 0; i < 300; ++i) {
    now += 100ms;
    if (i % 50 % 10 == 9) epochs.step(i % 50, now);
  }
  CHECK(epochs.summary(now).last_step == 299);
  CHECK(epochs.summary(now).of(Bucket::Stalled) == 0s);
  CHECK(epochs.summary(now).of(Bucket::Productive) >= 29s);
}

TEST_CASE("ledger: the exit of a worker that failed is no stall, unless it lasts") {
  for (const auto exit : {Duration(1400ms), Duration(60s)}) {
    Ledger ledger(TimePoint(0s));
    TimePoint now(0s);
    ledger.enter(Bucket::Running, now);
    for (int step = 0; step < 50; ++step) ledger.step(step, now += 100ms);
    ledger.failed(now += exit);
    const auto summary = ledger.summary(now);
    CHECK(summary.of(exit < 10s ? Bucket::Restart : Bucket::Stalled) == exit - 100ms);
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
    const double off = to_seconds(kept.above(step)) - to_seconds(exact(step));
    CHECK(std::abs(off) <= to_seconds(exact(step)) / 512);
    const Duration all = kept.above(0);
    auto copy = kept;
    const Duration back = copy.take_back(step + 1);
    CHECK(back == kept.above(step));
    CHECK(back + copy.above(0) == all);
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
    CHECK(summary.of(Bucket::Productive) == 11s);  // of 2 s the second one, and all others 1 s
    CHECK(summary.of(Bucket::Running) == 104s);
    ledger.failed(TimePoint(115s));
    ledger.enter(Bucket::Running, TimePoint(120s));
    ledger.step(11, TimePoint(150s));
    CHECK(ledger.summary(TimePoint(150s)).of(Bucket::Productive) == 12s);
    CHECK(ledger.summary(TimePoint(150s)).repeated == 29s);
  }
}

TEST_CASE("ledger: a stall within a step is no work, while it lasts and after it") {
  Ledger ledger(TimePoint(0s));
  ledger.enter(Bucket::Running, TimePoint(0s));
  for (int step = 1; step <= 50; ++step) ledger.step(step, TimePoint(step * 1s));
  CHECK(ledger.summary(TimePoint(54s)).of(Bucket::Stalled) == 0s);
  CHECK(ledger.summary(TimePoint(90s)).of(Bucket::Stalled) == 39s);
  auto late = ledger;
  ledger.step(51, TimePoint(151s));
  for (int step = 52; step <= 100; ++step) ledger.step(step, TimePoint(100s + step * 1s));
  CHECK(ledger.summary(TimePoint(200s)).of(Bucket::Stalled) == 100s);
  CHECK(ledger.summary(TimePoint(200s)).of(Bucket::Productive) == 100s);
  for (int step = 51; step <= 150; ++step) late.step(step, TimePoint(150s));
  CHECK_MESSAGE(late.summary(TimePoint(150s)).of(Bucket::Stalled) == 0s, "they were told late");
}

namespace {

/// What a job stalls whose steps take these times, a second each on average.
double stalled(const std::vector<double>& steps, Duration* productive = nullptr) {
  Ledger ledger(TimePoint(0s));
  TimePoint now(0s);
  ledger.enter(Bucket::Running, now);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    ledger.step(static_cast<std::int64_t>(i), now += from_seconds(steps[i]));
  }
  const auto summary = ledger.summary(now);
  CHECK(std::ranges::min(summary.buckets) >= 0s);
  CHECK(sum(summary) == summary.elapsed);
  if (productive != nullptr) *productive = summary.of(Bucket::Productive);
  return to_seconds(summary.of(Bucket::Stalled));
}

/// Bursts of `count` steps of which the first ones take `quick`, then the devices have done them.
std::vector<double> bursts(int number, int count, double quick, int device_paced = 0) {
  std::vector<double> steps;
  for (int i = 0; i < number; ++i) {
    steps.insert(steps.end(), static_cast<std::size_t>(count - 1), quick);
    steps.insert(steps.end(), static_cast<std::size_t>(device_paced), 1.0);
    steps.push_back(count - (count - 1) * quick);
  }
  return steps;
}

}  // namespace

TEST_CASE("ledger: steps of a script that runs ahead of its devices are no stalls") {
  for (const int count : {4, 10, 50, 200}) {
    CAPTURE(count);
    for (const double quick : {0.002, 0.05, 0.3}) {
      CAPTURE(quick);
      const auto steps = bursts(4000 / count, count, quick);
      Duration productive;
      CHECK(stalled(steps, &productive) <= (count < 8 ? count : 0));  // the first one, if so short
      CHECK(to_seconds(productive) >= 3999 - 2 * count);
      auto reversed = steps;
      std::ranges::reverse(reversed);
      CHECK(stalled(reversed) <= count);
    }
  }
  CHECK_MESSAGE(stalled(bursts(40, 20, 0.01, 79)) <= 0.02 * 4000, "until their queue is full");
}

TEST_CASE("ledger: bursts of any length at the same mean pace are none, and a stall is one") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<double> steps;
    double due = 0;
    while (steps.size() < 3000) {
      const auto count = 2 + random() % 30;
      for (std::size_t i = 1; i < count; ++i) {
        steps.push_back(0.001 * static_cast<double>(1 + random() % 40));
        due += 1 - steps.back();
      }
      steps.push_back(1 + std::exchange(due, 0.0));
    }
    CHECK(stalled(steps) <= 0.02 * 3000);
    const auto some = std::ranges::find_if(steps.begin() + 1500, steps.end(),
                                           [](double time) { return time > 5; });
    *some += 100;
    CHECK(stalled(steps) >= 98);
    CHECK(stalled(steps) <= 100 + 0.02 * 3000);
  }
}

TEST_CASE("ledger: stalls far apart in steady steps stay stalls, also at the same distance") {
  std::vector<double> steps(1000, 1.0);
  for (std::size_t at = 100; at < steps.size(); at += 100) steps[at] = 31;
  CHECK(stalled(steps) == doctest::Approx(270));
  for (std::size_t at = 0; at < steps.size(); ++at) steps[at] = at < 500 ? 1.0 : 8.0;
  CHECK_MESSAGE(stalled(steps) <= 7 * 16, "another pace is usual soon");
}

TEST_CASE(
    "ledger: after a failure what lies beyond the usual time of a step was the workers' end") {
  Ledger ledger(TimePoint(0s));
  ledger.enter(Bucket::Running, TimePoint(0s));
  for (int step = 1; step <= 50; ++step) ledger.step(step, TimePoint(step * 1s));
  SUBCASE("in a moment") {
    ledger.failed(TimePoint(53s));
    CHECK(ledger.summary(TimePoint(53s)).of(Bucket::Restart) == 2s);
  }
  SUBCASE("or a stall") {
    ledger.failed(TimePoint(80s));
    CHECK(ledger.summary(TimePoint(80s)).of(Bucket::Stalled) == 29s);
  }
  ledger.enter(Bucket::Running, TimePoint(90s));
  ledger.step(51, TimePoint(100s));
  CHECK(ledger.summary(TimePoint(100s)).of(Bucket::Lost) == 1s);
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
