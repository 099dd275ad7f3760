// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics.hpp"

#include "clock.hpp"
#include "telemetry/value.hpp"

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

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("metrics: a handler without a group gets the groups that have none of their own") {
  const SetClock clock;
  Pipeline pipeline(clock);
  Metrics metrics(pipeline);
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

TEST_CASE("metrics: a handler of one group alone leaves the others silent") {
  const SetClock clock;
  Pipeline pipeline(clock);
  Metrics metrics(pipeline);
  const auto mine = std::make_shared<MetricRecorder>();
  metrics.configure(mine, "mine");
  metrics.put("a", 1);
  CHECK(mine->lines.empty());
}

TEST_CASE("metrics: the console writes torchelastic's line") {
  SetClock clock;
  clock.wall_time += std::chrono::microseconds(123456);
  Pipeline pipeline(clock);
  Metrics metrics(pipeline);
  std::string written;
  metrics.configure(
      std::make_shared<ConsoleMetricHandler>([&](std::string_view line) { written += line; }));
  metrics.put("workers.default.run_total", 1);
  metrics.put("f", 0.5);
  CHECK(written ==
        "[1767323045.123456][torchelastic]: workers.default.run_total=1\n"
        "[1767323045.123456][torchelastic]: f=0.5\n");
}

TEST_CASE("metrics: a profile tells success or failure, then whole milliseconds") {
  SetClock clock;
  Pipeline pipeline(clock);
  Metrics metrics(pipeline);
  const auto all = std::make_shared<MetricRecorder>();
  metrics.configure(all);
  {
    const auto guard = metrics.prof("A.run");
    clock.mono += std::chrono::microseconds(2900);
  }
  try {
    const auto guard = metrics.prof("A.stop", "g");
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
  }
  {
    auto guard = metrics.prof("A.x");
    guard.fail();
  }
  CHECK(all->lines == Lines{"torchelastic/A.run.success=1", "torchelastic/A.run.duration.ms=2",
                            "g/A.stop.failure=1", "g/A.stop.duration.ms=0",
                            "torchelastic/A.x.failure=1", "torchelastic/A.x.duration.ms=0"});
}

TEST_CASE("metrics: the end of a run is told in torchelastic's order and numbers") {
  const SetClock clock;
  Pipeline pipeline(clock);
  Metrics metrics(pipeline);
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

TEST_CASE("metrics: the process-wide functions reach their handler and pass results on") {
  const auto all = std::make_shared<MetricRecorder>();
  configure(all, "test");
  put_metric("a", 3u, "test");
  CHECK(prof(
            "work", [] { return 42; }, "test") == 42);
  CHECK_THROWS_AS(prof(
                      "bad", []() -> int { throw std::runtime_error("x"); }, "test"),
                  std::runtime_error);
  REQUIRE(all->lines.size() == 5);
  CHECK(all->lines[0] == "test/a=3");
  CHECK(all->lines[1] == "test/work.success=1");
  CHECK(all->lines[3] == "test/bad.failure=1");
  configure(nullptr, "test");
  put_metric("a", 3, "test");
  CHECK(all->lines.size() == 5);
}

TEST_CASE("metrics: a handler that throws disturbs neither the caller nor other groups, counted") {
  const SetClock clock;
  Pipeline pipeline(clock);
  Metrics metrics(pipeline);
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

TEST_CASE("metrics: without a handler nothing is built") {
  const SetClock clock;
  Pipeline pipeline(clock);
  Metrics metrics(pipeline);
  CHECK_FALSE(pipeline.wants(kDefaultGroup));
  metrics.put("a", 1);
  { const auto guard = metrics.prof("x"); }
  CHECK(pipeline.lost() == 0);
}

TEST_CASE("metrics: K3: a profile is named after its class and method, or namespace and function") {
  const std::pair<const char*, const char*> known[] = {
      {"void elastrun::agent::Agent::run(int)", "Agent.run"},
      {"static bool {anonymous}::parse(std::string_view)", "parse"},
      {"void (anonymous namespace)::Agent::stop() const", "Agent.stop"},
      {"std::vector<int> trainer::steps(std::map<int, long>&)", "trainer.steps"},
      {"T trainer::Pool<T>::take(T) [with T = int]", "Pool.take"},
      {"int main(int, char**)", "main"}};
  for (const auto& [function, name] : known) CHECK(profile_name(function) == name);

  const SetClock clock;
  Pipeline pipeline(clock);
  struct Base {
    virtual ~Base() = default;
    virtual void work(Metrics& metrics) { const auto guard = metrics.prof(); }
  };
  struct Derived final : Base {};
  Metrics metrics(pipeline);
  const auto all = std::make_shared<MetricRecorder>();
  metrics.configure(all);
  Derived().work(metrics);
  CHECK(all->lines.at(0).ends_with("Base.work.success=1"));
}
