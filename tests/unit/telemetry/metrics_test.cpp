// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics.hpp"

#include "clock.hpp"
#include "telemetry/record.hpp"

#include <doctest/doctest.h>
#include <stdexcept>

using namespace elastrun;
using namespace elastrun::telemetry;
using namespace elastrun::telemetry::metrics;

namespace {

struct MetricRecorder final : MetricHandler {
  void emit(const MetricData& data) override {
    lines.push_back(data.group_name + "/" + data.name + "=" + to_text(data.value));
  }
  std::vector<std::string> lines;
};

struct MetricsOfPipeline : OnePipeline {
  Metrics metrics{pipeline};
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE_FIXTURE(
    MetricsOfPipeline,
    "metrics: a handler without a group gets the groups that have none of their own") {
  metrics.put("early", 1);
  const auto all = std::make_shared<MetricRecorder>(), mine = std::make_shared<MetricRecorder>();
  metrics.configure(all);
  metrics.configure(mine, "mine");
  metrics.put("a", 1);
  metrics.put("b", 2.5, "mine");
  metrics.put("c", true, "other");
  CHECK(all->lines == Lines{"torchelastic/a=1", "other/c=1"});
  CHECK(mine->lines == Lines{"mine/b=2.5"});
}

TEST_CASE_FIXTURE(MetricsOfPipeline,
                  "metrics: a handler of one group alone leaves the others silent") {
  const auto mine = std::make_shared<MetricRecorder>();
  metrics.configure(mine, "mine");
  metrics.put("a", 1);
  CHECK(mine->lines.empty());
}

TEST_CASE_FIXTURE(MetricsOfPipeline,
                  "metrics: a profile tells success or failure, then whole milliseconds") {
  const auto all = std::make_shared<MetricRecorder>();
  metrics.configure(all);
  metrics.put_profile("A.run", true, std::chrono::microseconds(2900));
  metrics.put_profile("A.stop", false, {}, "g");
  CHECK(all->lines == Lines{"torchelastic/A.run.success=1", "torchelastic/A.run.duration.ms=2",
                            "g/A.stop.failure=1", "g/A.stop.duration.ms=0"});
}

TEST_CASE_FIXTURE(MetricsOfPipeline,
                  "metrics: the end of a run is told in torchelastic's order and numbers") {
  const auto all = std::make_shared<MetricRecorder>();
  metrics.configure(all);
  put_run(metrics, {.role = "r", .failed = false, .remaining_restarts = 1, .max_restarts = 2});
  CHECK(all->lines == Lines{"torchelastic/workers.r.flakiness=33",
                            "torchelastic/workers.r.run_total=1",
                            "torchelastic/workers.r.run_success_with_retries=1",
                            "torchelastic/workers.r.run_success_no_retries=0",
                            "torchelastic/workers.r.run_failed_with_retries=0",
                            "torchelastic/workers.r.run_failed_no_retries=0"});
  all->lines.clear();
  put_run(metrics, {.role = "r", .failed = true});
  CHECK(all->lines.front() == "torchelastic/workers.r.flakiness=100");
  CHECK(all->lines.back() == "torchelastic/workers.r.run_failed_no_retries=1");
}

TEST_CASE("metrics: the process-wide functions reach their handler, until there is none") {
  const auto all = std::make_shared<MetricRecorder>();
  configure(all, "test");
  put_metric("a", 3u, "test");
  configure(nullptr, "test");
  put_metric("a", 3, "test");
  CHECK(all->lines == Lines{"test/a=3"});
}

TEST_CASE_FIXTURE(
    MetricsOfPipeline,
    "metrics: a handler that throws disturbs neither the caller nor other groups, counted") {
  struct Bad final : MetricHandler {
    void emit(const MetricData&) override { throw std::runtime_error("no"); }
  };
  const auto good = std::make_shared<MetricRecorder>();
  metrics.configure(std::make_shared<Bad>(), "bad");
  metrics.configure(good);
  metrics.put("a", 1, "bad");
  metrics.put("b", 2);
  CHECK(good->lines == Lines{"torchelastic/b=2"});
  CHECK(pipeline.lost() == 1);
}

TEST_CASE_FIXTURE(MetricsOfPipeline, "metrics: without a handler nothing is built") {
  CHECK_FALSE(pipeline.wants(kDefaultGroup));
  metrics.put("a", 1);
  CHECK(pipeline.lost() == 0);
}
