// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/save_times.hpp"

#include "core/text.hpp"

#include <doctest/doctest.h>
#include <string>

namespace elastrun::goodput {
namespace {

telemetry::Record record(const std::string& name, double second, std::int64_t step, int rank = 0) {
  telemetry::Record record;
  record.scope = "elastrun.worker";
  record.name = name;
  record.stamp.mono = TimePoint(from_seconds(second));
  if (name == "step") {
    record.value = step;
  } else {
    record.attributes = {{"step", step}, {"rank", std::int64_t{rank}}};
  }
  return record;
}

/// Steps of a second, of which every tenth is saved in `save` seconds; told `late` steps later.
SaveTimes told(double save, std::int64_t late = 0) {
  SaveTimes times;
  double now = 0;
  for (std::int64_t step = 1; step <= 50; ++step) {
    times.take(record("step", now += 1, step));
    if (step % 10 != late) continue;
    times.take(record("checkpoint", now += save, step - late));
    times.take(record("checkpoint", now + 0.5, step - late, 1));  // of another rank
  }
  return times;
}

}  // namespace

TEST_CASE("save times: from the end of a step until its checkpoint is complete") {
  CHECK(told(2.5).usual() == doctest::Approx(2.5));
}

TEST_CASE("save times: a save beside the training, or none at all, took no time of it") {
  CHECK_FALSE(told(2.5, 1).usual().has_value());
  CHECK_FALSE(told(0).usual().has_value());
  CHECK_FALSE(SaveTimes().usual().has_value());
}

TEST_CASE("save times: nothing is measured from one submission to the next") {
  SaveTimes times;
  for (int i = 0; i < 5; ++i) {
    times.take(record("step", 1, 7));
    telemetry::Record start;
    start.scope = "elastrun.agent";
    start.name = "job.started";
    times.take(start);
    times.take(record("checkpoint", 100, 7));
  }
  CHECK_FALSE(times.usual().has_value());
}

}  // namespace elastrun::goodput
