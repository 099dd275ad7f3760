// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/ledger.hpp"

#include "core/text.hpp"
#include "goodput/reports/summary.hpp"
#include "unit/goodput/moments.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <random>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

/// Ten seconds of start-up, then running.
Ledger running() {
  Ledger ledger(kStart);
  ledger.enter(Bucket::Running, at(10s));
  return ledger;
}

}  // namespace

TEST_CASE("ledger: a plain job is start-up, running and stopping") {
  Ledger ledger = running();
  ledger.enter(Bucket::Stopping, at(90s));
  const auto summary = ledger.summary(at(100s));
  CHECK(summary.elapsed == 100s);
  CHECK(summary.of(Bucket::Startup) == 10s);
  CHECK(summary.of(Bucket::Running) == 80s);
  CHECK(summary.of(Bucket::Stopping) == 10s);
  CHECK_FALSE_MESSAGE(summary.goodput().has_value(), "it may have been imports alone");
  CHECK(summary.goodput_at_most() == doctest::Approx(0.8));
  CHECK(summary.restarts == 0);
}

TEST_CASE("ledger: a phase that hooks could not explain makes a range") {
  Ledger ledger = running();
  TimePoint now = at(10s);
  for (int step = 0; step <= 20; ++step) {
    ledger.enter(bucket_of_phase("unexplained"), now);
    ledger.enter(Bucket::Running, now += 3s);
    ledger.step(step, now += 1s);
  }
  const auto summary = ledger.summary(now);
  CHECK(summary.restarts == 0);
  CHECK(summary.of(Bucket::Unexplained) == 63s);
  CHECK_FALSE(summary.goodput().has_value());
  CHECK(summary.goodput_at_least() == doctest::Approx(20.0 / 94).epsilon(0.06));
  CHECK(summary.goodput_at_most() == doctest::Approx(83.0 / 94).epsilon(0.02));
}

TEST_CASE("ledger: nothing elapsed is no division by zero") {
  CHECK(Ledger(kStart).summary(kStart).goodput_at_most() == 0);
}

TEST_CASE("ledger: without any checkpoint a failure loses nothing that is known") {
  Ledger ledger = running();
  ledger.failed(at(40s));
  ledger.enter(Bucket::Running, at(45s));
  const auto summary = ledger.summary(at(60s));
  CHECK(summary.of(Bucket::Running) == 45s);
  CHECK(summary.of(Bucket::Restart) == 5s);
  CHECK(summary.of(Bucket::Lost) == 0s);
  CHECK(summary.restarts == 1);
}

TEST_CASE("ledger: what ran since the last checkpoint is lost with the group") {
  Ledger ledger = running();
  ledger.step(1, at(20s));
  ledger.step(2, at(30s));
  ledger.checkpoint(-1, at(35s));
  ledger.step(3, at(45s));
  ledger.failed(at(50s));
  ledger.enter(Bucket::Running, at(55s));
  const auto summary = ledger.summary(at(65s));
  CHECK(summary.of(Bucket::Running) == 10s);
  CHECK(summary.of(Bucket::Productive) == 20s);
  CHECK(summary.of(Bucket::Checkpoint) == 5s);
  CHECK(summary.of(Bucket::Lost) == 15s);
  CHECK(summary.of(Bucket::Restart) == 5s);
  CHECK(summary.last_step == 3);
  CHECK(summary.last_checkpoint == 2);
}

TEST_CASE("ledger: the step at which the job resumes says what is kept, checkpoints or not") {
  // Steps 1 to 4 end at 20, 30, 40, 50; failure at 57, next start at 60, its first step ends at 70.
  const auto resumed_at = [](std::int64_t step) {
    Ledger ledger = running();
    for (int done = 1; done <= 4; ++done) ledger.step(done, at(10s + done * 10s));
    ledger.failed(at(57s));
    ledger.enter(Bucket::Running, at(60s));
    CHECK_FALSE(ledger.summary(at(65s)).loss_known);
    ledger.step(step, at(70s));
    const auto summary = ledger.summary(at(70s));
    CHECK(summary.loss_known);
    CHECK(sum(summary) == summary.elapsed);
    return summary;
  };
  // At the next step: only the one that was broken off.
  CHECK(resumed_at(5).of(Bucket::Lost) == 7s);
  CHECK(resumed_at(5).of(Bucket::Productive) == 50s);
  CHECK(resumed_at(100).of(Bucket::Lost) == 7s);
  CHECK(resumed_at(3).of(Bucket::Lost) == 27s);
  CHECK(resumed_at(3).of(Bucket::Productive) == 30s);
  // From the beginning: everything.
  CHECK(resumed_at(1).of(Bucket::Lost) == 47s);
  CHECK(resumed_at(1).of(Bucket::Productive) == 10s);
}

TEST_CASE("ledger: a step that begins says the same, and that what lies before is none") {
  Ledger ledger = running();
  ledger.begin_step(0, at(12s));
  ledger.step(0, at(20s));
  ledger.begin_step(1, at(20s));
  ledger.failed(at(25s));
  ledger.enter(Bucket::Running, at(30s));
  ledger.begin_step(1, at(33s));
  const auto summary = ledger.summary(at(40s));
  CHECK(summary.of(Bucket::Lost) == 5s);
  CHECK(summary.of(Bucket::Productive) == 8s);
  CHECK(summary.of(Bucket::Running) == 12s);  // the first step of this start is not over
}

TEST_CASE("ledger: a number that goes back within a start is done again, a repeated one is not") {
  Ledger ledger = running();
  for (int done = 1; done <= 4; ++done) ledger.step(done, at(10s + done * 10s));
  ledger.step(4, at(52s));
  CHECK(ledger.summary(at(60s)).of(Bucket::Lost) == 0s);
  ledger.step(3, at(60s));  // 3 and 4 again
  CHECK(ledger.summary(at(60s)).of(Bucket::Lost) == 22s);
  CHECK(sum(ledger.summary(at(60s))) == 60s);
}

TEST_CASE("ledger: an upload that ends after the failure of its start still keeps its steps") {
  Ledger ledger = running();
  for (int done = 1; done <= 4; ++done) ledger.step(done, at(10s + done * 10s));
  ledger.failed(at(57s));
  ledger.checkpoint(2, at(58s));
  const auto summary = ledger.summary(at(60s));
  CHECK(summary.of(Bucket::Lost) == 27s);
  CHECK(summary.loss_known);
}

TEST_CASE("ledger: a failure never raises goodput") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Ledger whole = running();
    Ledger broken = running();
    const auto steps = static_cast<int>(random() % 20) + 2;
    const auto crash = static_cast<int>(random() % static_cast<unsigned>(steps - 1)) + 1;
    const auto back = static_cast<int>(random() % static_cast<unsigned>(crash)) + 1;
    auto now = at(10s);
    for (int done = 1; done <= steps; ++done) whole.step(done, at(10s + done * 1s));
    for (int done = 1; done <= crash; ++done) broken.step(done, now += 1s);
    broken.failed(now += 300ms);
    broken.enter(Bucket::Running, now += 500ms);
    for (int done = back; done <= steps; ++done) broken.step(done, now += 1s);
    const auto one = whole.summary(at(10s + steps * 1s)), other = broken.summary(now);
    REQUIRE(other.goodput().value() < one.goodput().value());
    REQUIRE(other.of(Bucket::Productive) <= one.of(Bucket::Productive));
  }
}

TEST_CASE("ledger: a checkpoint of an earlier step keeps what lies before that step only") {
  Ledger ledger = running();
  for (int step = 1; step <= 5; ++step) ledger.step(step, at(10s + step * 10s));
  ledger.checkpoint(3, at(62s));  // steps 4 and 5 ran while it was written
  ledger.failed(at(65s));
  const auto summary = ledger.summary(at(65s));
  CHECK(summary.of(Bucket::Lost) == 25s);
  CHECK(summary.of(Bucket::Running) == 0s);
  CHECK(summary.of(Bucket::Productive) == 30s);
}

TEST_CASE("ledger: the same checkpoint told twice changes nothing, an older one neither") {
  Ledger ledger = running();
  for (int step = 1; step <= 5; ++step) ledger.step(step, at(10s + step * 10s));
  ledger.checkpoint(3, at(60s));
  ledger.checkpoint(3, at(60s));
  ledger.checkpoint(1, at(60s));
  ledger.failed(at(60s));
  CHECK(ledger.summary(at(60s)).of(Bucket::Lost) == 20s);
}

TEST_CASE("ledger: what is done again is safe with a later checkpoint, not with one before it") {
  Ledger ledger = running();
  for (int step = 1; step <= 5; ++step) ledger.step(step, at(10s + step * 10s));
  ledger.checkpoint(5, at(60s));
  ledger.failed(at(60s));
  ledger.enter(Bucket::Running, at(65s));
  for (int step = 3; step <= 5; ++step) ledger.step(step, at(45s + step * 10s));
  SUBCASE("the newer one") {
    ledger.checkpoint(4, at(95s));
    ledger.failed(at(95s));
    CHECK(ledger.summary(at(95s)).of(Bucket::Lost) == 40s);  // 3 to 5, and 5 once more
  }
  SUBCASE("none") {
    ledger.failed(at(95s));
    CHECK(ledger.summary(at(95s)).of(Bucket::Lost) == 60s);
  }
  CHECK(sum(ledger.summary(at(95s))) == 95s);
}

TEST_CASE("ledger: a checkpoint that is told before the end of its step says nothing of the pace") {
  Ledger ledger = running();
  for (int step = 1; step <= 40; ++step) {
    ledger.begin_step(step, at(step * 10s));
    const auto end = at(10s + step * 10s);
    if (step % 2 == 0) ledger.checkpoint(step, end);
    // Until there is one without a save nothing says how long a step takes.
    CHECK(ledger.summary(end).of(Bucket::Unexplained) == (step == 2 ? 10s : step == 3 ? 20s : 0s));
    ledger.step(step, end);
  }
  CHECK(ledger.summary(at(410s)).of(Bucket::Productive) == 400s);
  CHECK(ledger.summary(at(470s)).of(Bucket::Unexplained) == 50s);
}

TEST_CASE("ledger: the pace of all ranks is known once a step of theirs has a time") {
  Ledger ledger(kStart);
  ledger.world(4);
  ledger.enter(Bucket::Running, at(10s));
  for (int step = 1; step <= 5; ++step) ledger.step(step, at(10s + step * 10s));
  ledger.failed(at(60s));
  ledger.world(8);
  ledger.enter(Bucket::Running, at(65s));
  ledger.step(6, at(95s));  // how much of it was compilation is not known
  CHECK_FALSE(ledger.summary(at(95s)).at_full_pace.has_value());
  ledger.step(7, at(100s));
  CHECK(ledger.summary(at(100s)).at_full_pace == 35s);
}

TEST_CASE("ledger: a failure while a checkpoint is saved loses the running part only") {
  Ledger ledger = running();
  ledger.checkpoint(-1, at(20s));
  ledger.enter(Bucket::Checkpoint, at(30s));
  ledger.failed(at(34s));
  const auto summary = ledger.summary(at(40s));
  CHECK(summary.of(Bucket::Lost) == 10s);
  CHECK(summary.of(Bucket::Checkpoint) == 4s);
  CHECK(summary.of(Bucket::Running) == 10s);
}

TEST_CASE("ledger: saving is no restart, and steps stay known") {
  Ledger ledger = running();
  ledger.step(1, at(20s));
  ledger.step(2, at(25s));
  ledger.enter(Bucket::Checkpoint, at(30s));
  ledger.enter(Bucket::Running, at(35s));
  const auto summary = ledger.summary(at(36s));
  CHECK(summary.restarts == 0);
  CHECK(summary.of(Bucket::Productive) == 16s);
}

TEST_CASE("ledger: a fact from the past counts as if it happened with the last one") {
  Ledger ledger = running();
  ledger.step(1, at(20s));
  ledger.step(2, at(5s));
  ledger.enter(Bucket::Stopping, at(-50s));
  const auto summary = ledger.summary(at(25s));
  CHECK(summary.of(Bucket::Stopping) == 5s);
  CHECK(sum(summary) == summary.elapsed);
  CHECK(ledger.summary(at(3s)).elapsed == 20s);
}

TEST_CASE("ledger: what follows the last step of workers that end well is no training") {
  Ledger ledger = running();
  ledger.step(1, at(20s));
  ledger.step(2, at(30s));
  Duration saved{};
  SUBCASE("") {}
  SUBCASE("with a checkpoint of it or without") {
    saved = 2s;
    ledger.checkpoint(2, at(32s));
  }
  ledger.end_steps(Bucket::Stopping, at(35s));
  ledger.end_steps(Bucket::Stopping, at(36s));  // what is over is over
  CHECK(ledger.summary(at(36s)).of(Bucket::Productive) == 20s);
  CHECK(ledger.summary(at(36s)).of(Bucket::Stopping) == 6s - saved);
  CHECK(ledger.summary(at(36s)).of(Bucket::Checkpoint) == saved);
  ledger.failed(at(36s));  // on another node: this one has to do it again
  ledger.enter(Bucket::Running, at(40s));
  ledger.step(2, at(50s));
  const auto summary = ledger.summary(at(50s));
  CHECK(sum(summary) == summary.elapsed);
  CHECK(summary.of(Bucket::Stopping) == 6s - saved);
}

TEST_CASE("ledger: a checkpoint beyond the last step that was told shows training until then") {
  for (const bool known : {false, true}) {
    Ledger ledger = running();
    ledger.step(10, at(20s));
    if (known) ledger.step(20, at(30s));
    ledger.checkpoint(27, at(40s));
    ledger.end_steps(Bucket::Stopping, at(43s));
    const auto summary = ledger.summary(at(43s));
    CHECK(summary.of(Bucket::Productive) == (known ? 27s : 0s));
    CHECK(summary.of(Bucket::Checkpoint) == (known ? 3s : 0s));
    CHECK_MESSAGE(summary.of(Bucket::Unexplained) == (known ? 0s : 20s), "or the save took it");
    CHECK(summary.of(Bucket::Stopping) == 3s);
  }
}

TEST_CASE("ledger: where each step is saved before it is told, both are one unexplained time") {
  for (const int pure : {0, 4}) {
    Ledger ledger = running();
    ledger.keep_timeline();
    TimePoint now = at(10s);
    for (int step = 1; step <= 40; ++step) {
      now += 100ms;
      if (step > pure) ledger.checkpoint(step, now += 200ms);
      ledger.step(step, now);
    }
    ledger.failed(now);
    const auto summary = ledger.summary(now);
    CHECK(sum(summary) == summary.elapsed);
    CHECK(summary.goodput().has_value() == (pure > 0));
    const double truth = 4.0 / 21.2;
    CHECK(summary.goodput_at_least() <= truth + 1e-6);
    CHECK(summary.goodput_at_most() >= truth - 1e-6);
    CHECK(summary.of(Bucket::Checkpoint) == (pure > 0 ? 7200ms : 0ms));
    CHECK(summary.of(Bucket::Lost) == 0s);
  }
}

TEST_CASE("ledger: of steps that tell their begins the time between them is unexplained") {
  Ledger ledger = running();
  TimePoint now = at(10s);
  std::mt19937_64 random(3);
  Duration training{};
  for (int step = 1; step <= 50; ++step) {
    const Duration took = step % 2 == 0 ? 50ms : 100ms;  // by its data
    ledger.begin_step(step, now += 40ms);
    ledger.step(step, now += took);
    training += took;
  }
  const auto summary = ledger.summary(now);
  CHECK(summary.of(Bucket::Unexplained) == 49 * 40ms);
  CHECK(to_seconds(summary.of(Bucket::Productive)) ==
        doctest::Approx(to_seconds(training)).epsilon(0.02));
  ledger.failed(now);
  ledger.enter(Bucket::Running, now);
  ledger.begin_step(41, now);
  CHECK(ledger.summary(now).of(Bucket::Lost) == 10 * 115ms);
  CHECK(ledger.summary(now).of(Bucket::Unexplained) == 39 * 40ms);
}

TEST_CASE("ledger: whatever happens, the buckets add up and none is negative") {
  constexpr Bucket kEntered[] = {Bucket::Startup, Bucket::Rendezvous, Bucket::Running,
                                 Bucket::Running, Bucket::Checkpoint, Bucket::Restart,
                                 Bucket::Stopping};
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Ledger ledger(kStart);
    TimePoint now = kStart;
    std::int64_t step = 0;
    for (int fact = 0; fact < 60; ++fact) {
      now += Duration(static_cast<std::int64_t>(random() % 2'000'000'000) - 200'000'000);
      switch (random() % 10) {
        case 9:
          ledger.end_steps(Bucket::Stopping, now);
          break;
        case 8:
          ledger.begin_step(step, now);
          break;
        case 0:
          ledger.failed(now);
          break;
        case 1:
          ledger.checkpoint(static_cast<std::int64_t>(random() % 60) - 1, now);
          break;
        case 2:
          ledger.checkpoint(step, now);
          break;
        case 3:
          ledger.enter(kEntered[random() % std::size(kEntered)], now);
          break;
        case 4:
          step -= static_cast<std::int64_t>(random() % 5);
          break;
        default:
          ledger.step(++step, now);
          break;
      }
      const auto summary = ledger.summary(now + 1s);
      REQUIRE(sum(summary) == summary.elapsed);
      REQUIRE(*std::min_element(summary.buckets.begin(), summary.buckets.end()) >=
              Duration::zero());
      REQUIRE(summary.goodput_at_most() >= 0);
      REQUIRE(summary.goodput_at_most() <= 1);
    }
  }
}

TEST_CASE(
    "ledger: a million steps without a checkpoint stay cheap, and nearly all are told apart") {
  Ledger ledger = running();
  const int steps = 1'000'000;
  for (int step = 1; step <= steps; ++step) ledger.step(step, at(10s + step * 1ms));
  ledger.checkpoint(steps / 2, at(10s + steps * 1ms));
  ledger.failed(at(10s + steps * 1ms));
  const auto lost = ledger.summary(at(10s + steps * 1ms)).of(Bucket::Lost);
  CHECK(lost >= 500s);
  CHECK(lost <= 501s);  // steps are told apart to a 2048th part
}

TEST_CASE("summary: people see each bucket that is not empty, largest first, in 80 columns") {
  Ledger ledger = running();
  ledger.step(41, at(90s));
  ledger.step(42, at(100s));
  ledger.checkpoint(42, at(100s));
  ledger.failed(at(110s), Bucket::Restart, 0s);
  ledger.enter(Bucket::Running, at(110s + 2ms));
  ledger.step(43, at(124s));
  ledger.enter(Bucket::Stopping, at(125s));
  const std::string text = summary_text(ledger.summary(at(125s + 10us)), false);
  CHECK(text ==
        "goodput 24.8 % of 2 min 05 s, 1 restart, last step 43, checkpoint 42\n"
        "  running      1 min 13 s  59.2 %  #########        before their first step\n"
        "  productive       31.0 s  24.8 %  ####             training steps\n"
        "  startup          10.0 s   8.0 %  #                until the workers first ran\n"
        "  lost             10.0 s   8.0 %  #                done again after a failure\n"
        "  restart          2.0 ms  <0.1 %  .                from failure to next start\n"
        "  stopping          10 us  <0.1 %  .                ending the job\n"
        "  of these 4.0 s for restarts to reach their first step\n");
  CHECK(summary_text(ledger.summary(at(125s)), true).find("█████████") != std::string::npos);
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    CHECK(end - begin <= 80);
  }
}

TEST_CASE("summary: what nothing did again is not said to be done again") {
  Ledger::Summary summary;
  CHECK(bucket_meaning(Bucket::Lost, summary) == "steps that were not saved");
  summary.restarts = 1;
  CHECK(bucket_meaning(Bucket::Lost, summary) == "done again after a failure");
}

TEST_CASE("summary: without a checkpoint the share is only the most that it can be") {
  Ledger ledger = running();
  ledger.failed(at(20s));
  CHECK_FALSE(ledger.summary(at(20s)).loss_known);
  const auto text = summary_text(ledger.summary(at(20s)), false);
  CHECK(text.starts_with("goodput between 0 and 50.0 % of 20.0 s\n  Rank 0 reported no steps"));
  CHECK(text.ends_with(
      "  No checkpoint or later step was reported: what failures cost is not known.\n"));
  CHECK(summary_json(ledger.summary(at(20s))).at("loss_known") == false);
  Ledger stepped = running();
  stepped.step(1, at(14s));
  stepped.step(2, at(18s));
  stepped.failed(at(20s));
  CHECK_FALSE(stepped.summary(at(20s)).goodput().has_value());
  CHECK(
      summary_text(stepped.summary(at(20s)), false).starts_with("goodput at most 40.0 % of 20.0"));
  Ledger saved = running();
  saved.checkpoint(-1, at(15s));
  saved.failed(at(20s));
  CHECK(saved.summary(at(20s)).loss_known);
}

TEST_CASE("summary: machines get seconds that add up") {
  Ledger ledger = running();
  ledger.step(6, at(20s));
  ledger.step(7, at(40s));
  const auto object = summary_json(ledger.summary(at(40s)));
  double total = 0;
  for (const auto& [name, value] : object.at("buckets_s").as_object()) total += value.as_double();
  CHECK(total == doctest::Approx(40));
  CHECK(object.at("elapsed_s").as_double() == doctest::Approx(40));
  CHECK_MESSAGE(object.at("goodput").as_double() == doctest::Approx(0.75), "the first step counts");
  CHECK(object.at("goodput_at_most").as_double() == doctest::Approx(0.75));
  CHECK(summary_json(running().summary(at(40s))).at("goodput").is_null());
  CHECK(object.at("last_step").as_int64() == 7);
  CHECK(object.at("last_checkpoint").is_null());
}

TEST_CASE("ledger: what was booked wrongly is moved, at most all of it") {
  Ledger ledger = running();
  ledger.enter(Bucket::Stopping, at(20s));
  ledger.rebook(Bucket::Stopping, Bucket::Restart, 4s, at(30s));
  CHECK(ledger.summary(at(30s)).of(Bucket::Restart) == 4s);
  CHECK(ledger.summary(at(30s)).of(Bucket::Stopping) == 6s);
  ledger.rebook(Bucket::Stopping, Bucket::Restart, 60s, at(30s));
  ledger.rebook(Bucket::Stopping, Bucket::Restart, -60s, at(30s));
  const auto summary = ledger.summary(at(31s));
  CHECK(summary.of(Bucket::Restart) == 10s);
  CHECK(summary.of(Bucket::Stopping) == 1s);
  CHECK(sum(summary) == summary.elapsed);
}
