// SPDX-License-Identifier: Apache-2.0
#include "goodput/compat/goodput_calculator.hpp"

#include <doctest/doctest.h>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

namespace elastrun::goodput {
namespace {

using Attributes = std::vector<telemetry::Attribute>;

Status add(MeasurementLog& log, std::string_view text) {
  return log.add(members_of(parse_json(text).value().as_object()));
}

/// A job that starts at 0, then steps at the times given, by number.
MeasurementLog log_of(std::initializer_list<std::pair<int, double>> steps, double end) {
  MeasurementLog log;
  REQUIRE(log.add(Attributes{{"job_name", std::string("j")}, {"job_start_time", 0.0}}));
  for (const auto& [step, time] : steps) {
    REQUIRE(log.add(Attributes{{"step_count", std::int64_t{step}}, {"step_start_time", time}}));
  }
  REQUIRE(log.add(Attributes{{"job_name", std::string("j")}, {"job_end_time", end}}));
  return log;
}

TEST_CASE("measurement log: what the calculation needs and does not get is named") {
  MeasurementLog log;
  CHECK(add(log, R"({"step_start_time": 1})").error().text ==
        "'step_count' is missing or not a number");
  CHECK(add(log, R"({"step_start_time": "1", "step_count": 1})").error().text ==
        "'step_start_time' is missing or not a number");
  CHECK(add(log, R"({"step_start_time": 1, "step_count": 1e300})").error().text ==
        "'step_count' is 1e+300, out of range");
  CHECK(add(log, R"({"custom_badput_event_start_time": 1})").error().text ==
        "'custom_badput_event_type' is missing or not a text");
  CHECK(add(log, R"({"event_type": "save", "step": 1})").error().text ==
        "'checkpoint_manager_blocking_duration_secs' is missing or not a number");
  CHECK(add(log, R"({"event_type": "restore", "step": 1,
                     "checkpoint_manager_duration_secs": 2})")
            .error()
            .text == "'directory' is missing or not a text");
  CHECK(add(log, R"({"elastic_slice_counts_timestamp": 1, "active_slices": 1})").error().text ==
        "'available_slices' is missing or not a number");
  CHECK(log.entries().empty());
  // What is none of its business is kept for windows, which count entries of any kind.
  CHECK(add(log, R"({"some_time": 5, "other": null})"));
  CHECK(log.entries().at(0).kind == MeasurementKind::Other);
  CHECK(log.entries().at(0).time == 5);
}

TEST_CASE("measurement log: a step is the same, in whatever order its members come") {
  // The order of recorders is read by a way of its own.
  const telemetry::Attribute job{"job_name", std::string("j")};
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const telemetry::Value counts[] = {std::int64_t{7},
                                     std::int64_t{-7},
                                     std::int64_t{9'000'000'000'000'000},
                                     7.9,
                                     1e300,
                                     std::int64_t{-9'000'000'000'000'001},
                                     std::string("7"),
                                     telemetry::Value(nan),
                                     std::monostate()};
  const telemetry::Value times[] = {1.5, std::int64_t{-3}, nan, std::string("1"), true};
  for (const auto& count : counts) {
    for (const auto& time : times) {
      for (const double log_time : {nan, 8.0}) {
        const telemetry::Attribute step{"step_count", count}, start{"step_start_time", time};
        MeasurementLog one, other;
        const auto added = one.add(Attributes{job, step, start}, log_time);
        CHECK(added == other.add(Attributes{step, start, job}, log_time));
        CHECK(one.entries().size() == (added ? 1 : 0));
        if (!added || other.entries().empty()) continue;
        const auto &a = one.entries().front(), &b = other.entries().front();
        CHECK(a.kind == b.kind);
        CHECK(std::tuple(a.step, a.time, a.log_time, a.detail) ==
              std::tuple(b.step, b.time, b.log_time, b.detail));
      }
    }
  }
  // An event_type says what an entry is, whatever else stands in it.
  MeasurementLog log;
  CHECK_FALSE(log.add(Attributes{{"event_type", std::string("save")},
                                 {"step_count", std::int64_t{1}},
                                 {"step_start_time", 1.0}}));
}

TEST_CASE("goodput calculator: no start, no end, steps that are redone from 0") {
  MeasurementLog empty;
  CHECK(GoodputCalculator(empty).job(10).error().code == Code::Usage);
  CHECK(GoodputCalculator(empty).window({0, 10}).error().code == Code::Usage);

  // The original drops a segment that is redone from 0: neither productive nor wasted.
  const auto log = log_of({{0, 5}, {1, 8}, {2, 11}, {0, 20}, {1, 23}}, 26);
  const auto job = GoodputCalculator(log).job(99);
  REQUIRE(job);
  CHECK(job->percent == doctest::Approx(6.0 / 26 * 100));
  CHECK(job->badput_seconds[BadputType::WastedProgress] == 0);
  CHECK(job->badput_seconds[BadputType::Other] == doctest::Approx(20));
  CHECK(job->disruptions == 1);
}

TEST_CASE("goodput calculator: a question at a time knows nothing of what came later") {
  MeasurementLog log, until_30;
  for (int i = 0; i < 10; ++i) {
    const double time = 10.0 * i;
    const Attributes entry =
        i == 0 ? Attributes{{"job_start_time", time}}
               : Attributes{{"step_count", std::int64_t{i}}, {"step_start_time", time}};
    REQUIRE(log.add(entry));
    if (time <= 30) REQUIRE(until_30.add(entry));
  }
  GoodputCalculator calculator(log), fresh(log), of_then(until_30);
  const auto then = calculator.job(30).value();
  CHECK(then.max_productive_step == of_then.job(30)->max_productive_step);
  CHECK(then.percent == of_then.job(30)->percent);
  CHECK(calculator.deviations() == of_then.deviations());
  CHECK(fresh.step_deviations(30) == of_then.deviations());
  CHECK(fresh.job_without({}, 30)->percent == of_then.job_without({}, 30)->percent);
  CHECK(calculator.job(90)->max_productive_step == fresh.job(90)->max_productive_step);
}

TEST_CASE("goodput calculator: steps out of order are found again") {
  // 2 before 1: neither pair counts; 1 once more is a disruption.
  const auto log = log_of({{0, 0}, {2, 2}, {1, 4}, {3, 6}, {1, 8}, {2, 10}}, 12);
  const auto job = GoodputCalculator(log).job(99);
  REQUIRE(job);
  CHECK(job->disruptions == 1);
  CHECK(job->badput_seconds[BadputType::WastedProgress] == doctest::Approx(4));
  CHECK(job->productive_seconds == doctest::Approx(4));
}

TEST_CASE("goodput calculator: an exclusion must have a length") {
  const auto log = log_of({{0, 5}, {1, 8}}, 11);
  CHECK(GoodputCalculator(log).job_without({{3, 3}}, 20).error().code == Code::Usage);
  const auto all = GoodputCalculator(log).job_without({{5, 8}}, 20);
  REQUIRE(all);
  CHECK(all->excluded_seconds == doctest::Approx(3));
}

}  // namespace
}  // namespace elastrun::goodput
