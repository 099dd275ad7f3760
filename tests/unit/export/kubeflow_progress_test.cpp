// SPDX-License-Identifier: Apache-2.0
#include "export/kubeflow_progress.hpp"

#include "core/json.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;
using namespace std::chrono_literals;

namespace {

telemetry::Record step(std::int64_t number, Duration at) {
  telemetry::Record record;
  record.kind = telemetry::Record::Kind::Sample;
  record.scope = "elastrun.worker";
  record.name = "step";
  record.value = number;
  record.stamp.mono = TimePoint(at);
  return record;
}

telemetry::Record entry(std::string name, std::int64_t number, Duration at) {
  telemetry::Record record;
  record.kind = telemetry::Record::Kind::Event;
  record.scope = "elastrun.goodput";
  record.name = std::move(name);
  record.attributes = {{"job_name", "night"}, {"step_count", number}, {"rank", std::int64_t{0}}};
  record.stamp.mono = TimePoint(at);
  return record;
}

telemetry::Record metric(std::string scope, std::string name, double value, std::int64_t rank = 0) {
  telemetry::Record record;
  record.kind = telemetry::Record::Kind::Sample;
  record.scope = std::move(scope);
  record.name = std::move(name);
  record.value = value;
  record.attributes = {{"rank", rank}};
  return record;
}

std::string text(const KubeflowProgress& progress) {
  return progress.body(WallTime(1763690000s));
}

}  // namespace

TEST_CASE("kubeflow progress: share and remaining time follow from steps") {
  KubeflowProgress progress(200);
  CHECK(text(progress) ==
        R"({"trainerStatus":{"metrics":[],"lastUpdatedTime":"2025-11-21T01:53:20Z"}})");
  CHECK(progress.take(step(10, 5s)));
  CHECK(text(progress) == R"({"trainerStatus":{"progressPercentage":5,"metrics":[)"
                          R"({"name":"step","value":"10"}],)"
                          R"("lastUpdatedTime":"2025-11-21T01:53:20Z"}})");
  progress.take(step(50, 25s));  // half a second for each
  const auto status = parse_json(text(progress))->at("trainerStatus");
  CHECK(status.at("progressPercentage").as_int64() == 25);
  CHECK(status.at("estimatedRemainingSeconds").as_int64() == 75);
}

TEST_CASE("kubeflow progress: a start from a checkpoint begins the pace again") {
  KubeflowProgress progress(100);
  progress.take(step(10, 0s));
  progress.take(step(20, 1000s));
  progress.take(step(15, 2000s));
  CHECK(!text(progress).contains("estimatedRemainingSeconds"));
  progress.take(step(25, 2010s));
  CHECK(text(progress).contains(R"("estimatedRemainingSeconds":75)"));
  progress.take(step(300, 2011s));  // more than was said
  CHECK(text(progress).contains(R"("progressPercentage":100,"estimatedRemainingSeconds":0)"));
}

TEST_CASE("kubeflow progress: the last of the steps that are counted from 0 is all of them") {
  KubeflowProgress progress(10);
  for (int i = 0; i < 10; ++i) progress.take(step(i, i * 1s));
  CHECK(text(progress).contains(R"("progressPercentage":100,"estimatedRemainingSeconds":0)"));
  CHECK(text(progress).contains(R"({"name":"step","value":"9"})"));
}

TEST_CASE("kubeflow progress: hooks and recorders tell steps, too") {
  KubeflowProgress hooks(4);
  CHECK(hooks.take(entry("step_end_time", 0, 1s)));
  CHECK(hooks.take(entry("step_end_time", 1, 2s)));
  CHECK(text(hooks).contains(R"("progressPercentage":50,"estimatedRemainingSeconds":2)"));
  CHECK(!hooks.take(entry("checkpoint_save_start_time", 1, 3s)));

  KubeflowProgress recorder(4);
  CHECK(!recorder.take(entry("step_start_time", 0, 0s)));
  CHECK(recorder.take(entry("step_start_time", 1, 1s)));
  CHECK(text(recorder).contains(R"("progressPercentage":25)"));
  CHECK(recorder.take(entry("step_start_time", 3, 3s)));
  CHECK(recorder.take(entry("job_end_time", 0, 4s)));
  CHECK(text(recorder).contains(R"("progressPercentage":100)"));

  KubeflowProgress from_one(4);
  from_one.take(entry("step_start_time", 1, 0s));
  CHECK(text(from_one).contains(R"("progressPercentage":0)"));
  from_one.take(entry("step_start_time", 3, 2s));
  CHECK(text(from_one).contains(R"("progressPercentage":50)"));

  KubeflowProgress both(4);
  CHECK(both.take(step(2, 2s)));
  CHECK(!both.take(entry("step_start_time", 2, 2s)));  // heard later than its end
  auto other = entry("step_end_time", 3, 3s);
  other.scope = "worker";
  CHECK(!KubeflowProgress(4).take(other));
}

TEST_CASE("kubeflow progress: without the number of steps there is no share") {
  KubeflowProgress progress(std::nullopt);
  progress.take(step(1, 1s));
  progress.take(step(2, 2s));
  CHECK(text(progress).contains(R"({"name":"step","value":"2"})"));
  CHECK(!text(progress).contains("progressPercentage"));
  CHECK(!text(progress).contains("estimatedRemainingSeconds"));
}

TEST_CASE("kubeflow progress: metrics are those of rank 0, and fit the fields") {
  KubeflowProgress progress(std::nullopt);
  CHECK(progress.take(metric("worker", "loss", 0.123456789)));
  CHECK(progress.take(metric("eval", "accuracy", 1)));
  CHECK(!progress.take(metric("worker", "loss", 9, 1)));
  CHECK(!progress.take(metric("elastrun.worker", "other", 9)));
  CHECK(!progress.take(metric("worker", "", 9)));
  auto text_value = metric("worker", "name", 0);
  text_value.value = std::string("bert");
  CHECK(!progress.take(text_value));
  auto event = metric("worker", "event", 0);
  event.kind = telemetry::Record::Kind::Event;
  CHECK(!progress.take(event));
  CHECK(text(progress).contains(
      R"("metrics":[{"name":"eval/accuracy","value":"1"},{"name":"loss","value":"0.123457"}])"));
  // Cut before the character that would not fit as a whole.
  progress.take(metric("worker", std::string(63, 'a') + "\xc3\xa9", 2));
  CHECK(text(progress).contains('"' + std::string(63, 'a') + '"'));
  for (int i = 0; i < 1000; ++i) progress.take(metric("worker", "m" + std::to_string(i), i));
  progress.take(step(1, 1s));
  const auto status = parse_json(text(progress))->at("trainerStatus");
  CHECK(status.at("metrics").as_array().size() == KubeflowProgress::kMetrics);
}
