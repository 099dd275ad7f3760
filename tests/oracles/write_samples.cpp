// SPDX-License-Identifier: Apache-2.0
// Writes one of everything in every format, for oracles_test.py:
//
//     oracle_samples DIRECTORY
#include "export/exposition.hpp"
#include "export/otlp_sink.hpp"
#include "export/record_line.hpp"
#include "export/viewer_files.hpp"
#include "unit/export/sample_points.hpp"

#include <fstream>
#include <string>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Record;

namespace {

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string page(SamplePoints& points, PageForm form) {
  return page_of(
      points.snapshot(), form,
      {.resource = {{"service.name", "elastrun.agent"}, {"process.pid", std::int64_t{42}}}});
}

Record a_window(std::int64_t index, const telemetry::Sketch& sketch) {
  Record record;
  record.kind = Record::Kind::Window;
  record.name = "lat";
  record.stamp.wall = WallTime(std::chrono::seconds(1763690000 + index));
  record.stamp.mono = TimePoint(std::chrono::seconds(index));
  telemetry::Window window;
  window.index = index;
  window.aggregates = {{"mean", 0.5 + static_cast<double>(index)}, {"count", std::int64_t{4}}};
  window.sketch = std::make_shared<const telemetry::Sketch>(sketch);
  record.window = std::make_shared<const telemetry::Window>(std::move(window));
  return record;
}

std::string trace(const telemetry::Sketch& sketch) {
  std::string text(kTraceBegin);
  text += trace_process(0, "agent", 0) + trace_process(1, "rank 0", 1);
  Record record;
  record.name = "worker.ended";
  record.scope = "elastrun.agent";
  record.attributes = {{"rank", std::int64_t{0}}, {"odd", std::nan("")}, {"why", "\xff\n"}};
  text += trace_line(*trace_event_of(record));
  text += trace_line(*trace_event_of(a_window(1, sketch)));
  return text;
}

std::string tensorboard(WallTime start, const telemetry::Sketch& sketch) {
  std::string file = tensorboard_version(start);
  TensorBoardRecords records;
  for (std::int64_t index = 0; index < 3; ++index) file += records.of(a_window(index, sketch));
  return file;
}

/// One of each kind, with everything that may be odd about one.
std::string json_lines(const Record& event, const telemetry::Sketch& sketch) {
  std::string text = to_json_line(event) + "\n";
  Record bare;
  bare.name = "";
  text += to_json_line(bare) + "\n";
  Record sample;
  sample.kind = Record::Kind::Sample;
  sample.name = "loss";
  sample.severity = telemetry::Severity::Warn;
  sample.id = 0xabc;
  for (const auto& value : {telemetry::Value(0.5), telemetry::Value(std::nan("")),
                            telemetry::Value(std::int64_t{-3}), telemetry::Value("text")}) {
    sample.value = value;
    text += to_json_line(sample) + "\n";
  }
  text += to_json_line(a_window(3, sketch)) + "\n";
  Record empty = a_window(4, sketch);
  telemetry::Window window;
  window.no_data = true;
  window.unit = "s";
  window.aggregates = {{"p99", {}}};
  empty.window = std::make_shared<const telemetry::Window>(std::move(window));
  text += to_json_line(empty) + "\n";
  Record span;
  span.kind = Record::Kind::SpanEnd;
  span.name = "rendezvous";
  span.attributes = {{"round", std::int64_t{1}}, {"duration_ns", std::int64_t{5}}};
  return text + to_json_line(span) + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string directory = argv[1];
  SamplePoints points;
  write(directory + "/page.prom", page(points, PageForm::Prometheus));
  write(directory + "/page.openmetrics", page(points, PageForm::OpenMetrics));
  const OtlpOptions options{.resource = {{"service.name", "elastrun.agent"}}};
  write(directory + "/metrics.json", otlp_metrics(points.snapshot(), options));
  Record event;
  event.name = "round";
  event.scope = "elastrun.agent";
  event.attributes = {{"message", "m\xff"}, {"n", std::int64_t{3}}, {"f", HUGE_VAL}, {"none", {}}};
  write(directory + "/logs.json", otlp_logs(std::vector{event}, options));
  telemetry::Sketch sketch;
  for (const double value : {-2.0, 0.0, 0.5, 1.0}) sketch.add(value);
  write(directory + "/trace.json", trace(sketch));
  write(directory + "/records.jsonl", json_lines(event, sketch));
  const WallTime start(std::chrono::seconds(1763690000));
  write(directory + "/" + tensorboard_file_name(start, "host", 42), tensorboard(start, sketch));
}
