// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/what_if.hpp"

#include <cmath>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

/// 10,000 steps of a second, saved every 100 in 5 s, 4 failures, a restart of 60 s.
Ledger::Summary recorded() {
  Ledger::Summary summary;
  summary.elapsed = 11'000s;
  summary.buckets[static_cast<std::size_t>(Bucket::Productive)] = 10'000s;
  summary.buckets[static_cast<std::size_t>(Bucket::Restart)] = 200s;
  summary.buckets[static_cast<std::size_t>(Bucket::Preparation)] = 50s;
  summary.restarts = 4;
  summary.last_step = 10'000;
  summary.work = {4, 100, 100, 500s, 10'000, 10'000s};
  return summary;
}

}  // namespace

TEST_CASE("what if: what is not asked is what was recorded") {
  const auto answer = what_if(recorded(), {}).value();
  CHECK(answer.policy.mtbf == doctest::Approx(2750));
  CHECK(answer.policy.save == doctest::Approx(5));
  CHECK(answer.policy.restart == doctest::Approx(60));
  CHECK_FALSE(answer.asked.has_value());
  CHECK(answer.recorded->steps == 100);
  CHECK(answer.recorded->goodput == doctest::Approx(answer.policy.goodput(100)));
  CHECK(answer.recorded->seconds == doctest::Approx(10'000 / answer.policy.goodput(100)));
  CHECK(answer.best.steps == std::round(answer.policy.best_interval()));
  CHECK(answer.best.goodput >= answer.recorded->goodput);
}

TEST_CASE("what if: jobs whose failures are drawn come near to the formula, the same each time") {
  for (const double mtbf : {300.0, 3000.0, 30'000.0}) {
    for (const std::int64_t interval : {20, 100, 400}) {
      CAPTURE(mtbf);
      CAPTURE(interval);
      const WhatIfQuestion question{mtbf, 5.0, interval};
      const auto answer = what_if(recorded(), question).value();
      CHECK(answer.asked->simulated == doctest::Approx(answer.asked->goodput).epsilon(0.1));
      CHECK(answer.asked->simulated == what_if(recorded(), question)->asked->simulated);
    }
  }
}

TEST_CASE("what if: an interval in which no attempt succeeds is no goodput and no endless loop") {
  const auto answer = what_if(recorded(), {10.0, 5.0, 10'000}).value();
  CHECK(answer.asked->goodput < 1e-9);
  CHECK(answer.asked->simulated == 0);
  CHECK(what_if_text(answer).contains("never\n"));
  const auto never = what_if(recorded(), {1e-3, 5.0, 1'000'000}).value();
  CHECK(never.asked->goodput == 0);
  CHECK(what_if_json(never).at("asked").at("elapsed_s").is_null());
}

TEST_CASE(
    "what if: a restart that never was lasts as long as the start of the job, and it is said") {
  auto summary = recorded();
  summary.restarts = 0;
  summary.buckets[static_cast<std::size_t>(Bucket::Restart)] = 0s;
  summary.buckets[static_cast<std::size_t>(Bucket::Startup)] = 3s;
  const auto answer = what_if(summary, {.mtbf = 100, .save_time = {}, .interval = {}}).value();
  CHECK(answer.policy.restart == doctest::Approx(53));
  CHECK(what_if_text(answer).contains("\n  no restart was recorded: it is taken"));
  CHECK_FALSE(what_if_json(answer).at("restart_recorded").as_bool());
  CHECK_FALSE(what_if_text(what_if(recorded(), {}).value()).contains("no restart was"));
}

TEST_CASE("what if: what nobody has said is asked for") {
  auto summary = recorded();
  summary.work.failures = 0;
  CHECK(what_if(summary, {}).error().text.contains("--mtbf"));
  CHECK(what_if(summary, {.mtbf = 100, .save_time = {}, .interval = {}}).has_value());
  summary.work.saves = 0;
  CHECK(what_if(summary, {.mtbf = 100, .save_time = {}, .interval = {}})
            .error()
            .text.contains("--save-time"));
  summary.work.steps = 0;
  CHECK(what_if(summary, {100.0, 1.0, 10}).error().text.contains("two steps"));
}

TEST_CASE("what if: people get lines of at most 80 columns") {
  const auto text = what_if_text(what_if(recorded(), {3600.0, 10.0, 200}).value());
  CHECK(
      text.starts_with("10000 steps of 1.0 s, a failure every 1 h 00 min, 10.0 s for a "
                       "checkpoint, 1 min 00 s for a restart\n"));
  CHECK(text.contains("  asked        200 steps"));
  CHECK(text.contains("  recorded     100 steps"));
}

TEST_CASE("what if: steps that were done again are no work of the job") {
  auto summary = recorded();
  summary.buckets[static_cast<std::size_t>(Bucket::Lost)] = 2500s;
  summary.work.steps = 12'500;
  summary.work.stepping = 12'500s;
  const auto answer = what_if(summary, {}).value();
  CHECK(answer.steps == 10'000);
  CHECK(answer.recorded->seconds == doctest::Approx(10'000 / answer.recorded->goodput));
}

TEST_CASE("what if: the best interval is none that is longer than the job") {
  auto summary = recorded();
  summary.work.steps = 50;
  summary.work.stepping = 50s;
  const auto answer = what_if(summary, {.mtbf = 1e6, .save_time = 5.0, .interval = {}}).value();
  CHECK(answer.best.steps == 50);
  CHECK(what_if_text(answer).contains("a checkpoint at its end"));
}

TEST_CASE("what if: a save that nobody has timed takes what was observed, and it is said") {
  auto summary = recorded();
  summary.work.saves = 0;
  summary.work.saving = 0s;
  WhatIfQuestion question;
  CHECK_FALSE(what_if(summary, question).has_value());
  question.observed_save = 3;
  const auto answer = what_if(summary, question).value();
  CHECK(answer.policy.save == 3);
  CHECK(answer.save_observed);
  CHECK(what_if_text(answer).contains("until it was told complete"));
  question.save_time = 4;
  CHECK(what_if(summary, question)->policy.save == 4);
  CHECK_FALSE(what_if(summary, question)->save_observed);
}
