// SPDX-License-Identifier: Apache-2.0
#include "agent/web/web_services.hpp"
#include "core/text.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace elastrun::agent {
namespace {

using std::chrono::seconds;

void add(JobHistory& history, int second, const JobHistory::Values& values) {
  history.add(TimePoint(seconds(second)), WallTime(seconds(1000 + second)), values);
}

}  // namespace

TEST_CASE("job history: a value that began later, ended or is no number is null at other points") {
  JobHistory history;
  add(history, 0, {{"cpu", 0.5}});
  add(history, 2, {{"cpu", std::numeric_limits<double>::infinity()}, {"loss", 0.123456789}});
  add(history, 4, {{"cpu", 0}});
  CHECK(
      json::serialize(history.text()) ==
      R"({"at":[1E3,1.002E3,1.004E3],"series":{"cpu":[5E-1,null,0],"loss":[null,1.2346E-1,null]}})");
}

TEST_CASE("job history: what comes within the stretch of the last point is left out") {
  JobHistory history;
  for (int i = 0; i < 5; ++i) add(history, i, {{"cpu", i}});
  CHECK(history.text().at("at").as_array().size() == 3);
}

TEST_CASE(
    "job history: weeks take no more points than minutes, the first and the last among them") {
  JobHistory history;
  const int month = 30 * 24 * 3600;
  for (int i = 0; i <= month; i += 60) add(history, i, {{"cpu", 1.0}});
  const auto text = history.text();
  const auto& at = text.at("at").as_array();
  CHECK(at.size() > JobHistory::kPoints / 2);
  CHECK(at.size() <= JobHistory::kPoints);
  CHECK(at.front().to_number<double>() == 1000);
  CHECK(at.back().to_number<double>() > 1000 + month - 4 * to_seconds(history.stretch()));
}

TEST_CASE("job history: names beyond the limit are left out") {
  JobHistory history;
  JobHistory::Values values;
  for (int i = 0; i < 100; ++i) values.emplace_back("metric" + std::to_string(i), i);
  add(history, 0, values);
  CHECK(history.text().at("series").as_object().size() == JobHistory::kSeries);
}

}  // namespace elastrun::agent
