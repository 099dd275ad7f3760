// SPDX-License-Identifier: Apache-2.0
#include "export/exposition.hpp"

#include "sample_points.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;

namespace {

/// The lines that begin with `begin`, each with its newline.
std::string lines(const std::string& page, std::string_view begin) {
  std::string found;
  for (std::size_t at = 0, end; at < page.size(); at = end + 1) {
    end = page.find('\n', at);
    const auto line = page.substr(at, end - at + 1);
    if (line.starts_with(begin)) found += line;
  }
  return found;
}

std::string text(const telemetry::Snapshot& snapshot, const PageOptions& options = {}) {
  return page_of(snapshot, PageForm::Prometheus, options);
}

void add(telemetry::Snapshot& snapshot, telemetry::Kind kind, telemetry::Spec spec,
         std::vector<telemetry::Attribute> labels = {}) {
  auto& point = snapshot.points.emplace_back();
  point.spec = std::make_shared<const telemetry::Spec>(std::move(spec));
  point.kind = kind;
  point.labels = std::move(labels);
  point.value = std::int64_t{1};
}

}  // namespace

TEST_CASE("exposition: a gauge does not end as a histogram does") {
  telemetry::Snapshot snapshot;
  add(snapshot, telemetry::Kind::Gauge, {.name = "process.thread.count"});
  CHECK(text(snapshot) == "# TYPE process_thread_number gauge\nprocess_thread_number 1\n");
  snapshot.points[0].kind = telemetry::Kind::Counter;
  CHECK(text(snapshot) ==
        "# TYPE process_thread_count_total counter\nprocess_thread_count_total 1\n");
}

TEST_CASE("exposition: names and units by rule") {
  CHECK(prometheus_name("elastrun.run..count-x") == "elastrun_run_count_x");
  CHECK(prometheus_name("9a") == "_9a");
  CHECK(prometheus_name("\xc3\xa9") == "_");
  CHECK(prometheus_unit("s", false) == "seconds");
  CHECK(prometheus_unit("By/s", false) == "bytes_per_second");
  CHECK(prometheus_unit("{packet}/s", false) == "per_second");
  CHECK(prometheus_unit("1", true) == "ratio");
  CHECK(prometheus_unit("1", false).empty());
  CHECK(prometheus_unit("{restart}", true).empty());
  CHECK(prometheus_unit("furlong", true) == "furlong");
  telemetry::Snapshot snapshot;  // keys that become one
  add(snapshot, telemetry::Kind::Gauge, {.name = "n"}, {{"a.b", "1"}, {"a_b", "2"}, {"t", true}});
  CHECK(text(snapshot).ends_with("n{a_b=\"1;2\",t=\"true\"} 1\n"));
}

TEST_CASE("exposition: a label of the user's that a line has by itself is another one") {
  telemetry::Snapshot snapshot;
  add(snapshot, telemetry::Kind::Gauge, {.name = "n", .scope = "g"},
      {{"le", "1"}, {"otel.scope.name", "x"}, {"quantile", "two"}});
  const auto shown = [&](telemetry::Kind kind, std::string_view sample) {
    snapshot.points[0].kind = kind;
    return lines(text(snapshot), sample);
  };
  const std::string others = R"(exported_otel_scope_name="x",)";
  CHECK(shown(telemetry::Kind::Gauge, "n{") ==
        "n{le=\"1\"," + others + "quantile=\"two\",otel_scope_name=\"g\"} 1\n");
  CHECK(shown(telemetry::Kind::Histogram, "n_count") ==
        "n_count{exported_le=\"1\"," + others + "quantile=\"two\",otel_scope_name=\"g\"} 0\n");
  CHECK(shown(telemetry::Kind::Stat, "n_count") ==
        "n_count{le=\"1\"," + others + "exported_quantile=\"two\",otel_scope_name=\"g\"} 0\n");
  snapshot.points[0].labels = {{"otel_scope_name", "x"}, {"exported_otel_scope_name", "y"}};
  CHECK(shown(telemetry::Kind::Gauge, "n{") ==
        "n{exported_otel_scope_name=\"y\",exported_exported_otel_scope_name=\"x\","
        "otel_scope_name=\"g\"} 1\n");
}

TEST_CASE("exposition: series of one instrument may have different labels") {
  telemetry::Snapshot snapshot;
  const auto add_one = [&](std::vector<telemetry::Attribute> labels) {
    add(snapshot, telemetry::Kind::Gauge, {.name = "n"}, std::move(labels));
    snapshot.points.back().spec = snapshot.points.front().spec;
  };
  add_one({{"z.y", "1"}, {"a.b", "2"}});
  add_one({{"a.b", "3"}, {"z.y", "4"}});
  add_one({{"otel.metric.overflow", true}});
  add_one({});
  add_one({{"a.b", "2"}, {"z_y", "1"}});  // the first one again
  CHECK(text(snapshot, {.tells_refused = true})
            .ends_with("# TYPE n gauge\nn{a_b=\"2\",z_y=\"1\"} 1\nn{a_b=\"3\",z_y=\"4\"} 1\n"
                       "n{otel_metric_overflow=\"true\"} 1\nn 1\n"));
  CHECK(lines(text(snapshot, {.tells_refused = true}), "elastrun") == "elastrun_page_refused 1\n");
}

TEST_CASE("exposition: the agent's and the machine's come first, and what is refused is told") {
  telemetry::Snapshot snapshot;
  using telemetry::Kind;
  add(snapshot, Kind::Gauge, {.name = "elastrun.restarts", .scope = "a"});
  add(snapshot, Kind::Gauge, {.name = "system.time", .scope = "a"});
  add(snapshot, Kind::Counter, {.name = "elastrun.page.refused", .scope = "a"});
  add(snapshot, Kind::Counter, {.name = "elastrun.restarts", .scope = "elastrun.agent"});
  add(snapshot, Kind::Counter, {.name = "system.time"});
  const auto page = text(snapshot, {.tells_refused = true});
  CHECK(lines(page, "# TYPE") ==
        "# TYPE elastrun_page_refused gauge\n# TYPE elastrun_restarts_total counter\n"
        "# TYPE system_time_total counter\n");
  CHECK(lines(page, "elastrun_page_refused") == "elastrun_page_refused 3\n");
  snapshot.points.resize(1);
  CHECK(lines(text(snapshot, {.tells_refused = true}), "elastrun_page").empty());
}

TEST_CASE("exposition: the text format, line by line") {
  SamplePoints points;
  const auto page = text(points.snapshot());
  CHECK(lines(page, "# HELP elastrun_worker") ==
        "# HELP elastrun_worker_restarts_total Restarts of \"the\" group.\\nAll\\\\of them.\n");
  CHECK(lines(page, "elastrun_worker") ==
        "elastrun_worker_restarts_total{role=\"a \\\"b\\\"\\\\\\nc \xc3\xa9 \xef\xbf\xbd\"} 1\n"
        "elastrun_worker_restarts_total{role=\"trainer\"} 2\n");
  CHECK(lines(page, "hw") == "hw_energy_joules_total{otel_scope_name=\"hw\"} 0.5\n");
  CHECK(lines(page, "load") ==
        "load_share_ratio{cpu=\"0\"} 0.25\n"
        "load_share_ratio{cpu=\"1\"} NaN\n"
        "load_share_ratio{cpu=\"2\"} +Inf\n");
  CHECK(lines(page, "batch") ==
        "batch_time_milliseconds_sum 7.5\n"
        "batch_time_milliseconds_count 3\n");
  CHECK(lines(page, "queue") == "queue_length -3\n");
  CHECK(lines(page, "# TYPE") ==
        "# TYPE batch_time_milliseconds summary\n"
        "# TYPE clock_drift_seconds histogram\n"
        "# TYPE clock_skew_seconds summary\n"
        "# TYPE elastrun_rendezvous_duration_seconds histogram\n"
        "# TYPE elastrun_worker_restarts_total counter\n"
        "# TYPE hw_energy_joules_total counter\n"
        "# TYPE load_share_ratio gauge\n"
        "# TYPE queue_length gauge\n");
  CHECK(page.find("# EOF") == std::string::npos);
}

TEST_CASE("exposition: buckets rise to the count, and bounds are written as each format wants") {
  SamplePoints points;
  const PageOptions options{.bounds = {0.1, 1, 1e6}};
  CHECK(lines(text(points.snapshot(), options), "elastrun_rendezvous") ==
        "elastrun_rendezvous_duration_seconds_bucket{le=\"0.1\"} 0\n"
        "elastrun_rendezvous_duration_seconds_bucket{le=\"1\"} 3\n"
        "elastrun_rendezvous_duration_seconds_bucket{le=\"1e+06\"} 4\n"
        "elastrun_rendezvous_duration_seconds_bucket{le=\"+Inf\"} 4\n"
        "elastrun_rendezvous_duration_seconds_sum 3.75\n"
        "elastrun_rendezvous_duration_seconds_count 4\n");
  const auto open = page_of(points.snapshot(), PageForm::OpenMetrics, options);
  CHECK(lines(open, "elastrun_rendezvous_duration_seconds_bucket{le=\"1.0\"}").ends_with(" 3\n"));
  CHECK(lines(open, "elastrun_rendezvous_duration_seconds_bucket{le=\"1e+06\"}").ends_with(" 4\n"));
  CHECK(lines(open, "clock_drift_seconds_bucket") ==
        "clock_drift_seconds_bucket{le=\"0.1\"} 2\n"
        "clock_drift_seconds_bucket{le=\"1.0\"} 2\n"
        "clock_drift_seconds_bucket{le=\"1e+06\"} 3\n"
        "clock_drift_seconds_bucket{le=\"+Inf\"} 3\n");
  CHECK(lines(open, "clock_drift_seconds_sum").empty());  // negative values: it may fall
  CHECK(lines(open, "clock_drift_seconds_count").empty());
}

TEST_CASE("exposition: OpenMetrics has units, creation times and its end") {
  SamplePoints points;
  const auto page = page_of(points.snapshot(), PageForm::OpenMetrics,
                            {.resource = {{"service.name", "elastrun.agent"}}});
  CHECK(page.ends_with("\n# EOF\n"));
  CHECK(page.find("\n\n") == std::string::npos);
  CHECK(page.find("# TYPE hw_energy_joules counter\n# UNIT hw_energy_joules joules\n"
                  "# HELP hw_energy_joules Energy.\n"
                  "hw_energy_joules_total{otel_scope_name=\"hw\"} 0.5\n"
                  "hw_energy_joules_created{otel_scope_name=\"hw\"} 1763690000.000\n") !=
        std::string::npos);
  CHECK(lines(page, "target_info") == "target_info{service_name=\"elastrun.agent\"} 1\n");
  CHECK(lines(page, "# TYPE target") == "# TYPE target info\n");
  CHECK(page.find("\\\"the\\\"") != std::string::npos);
}

TEST_CASE("exposition: two instruments never write one sample") {
  SamplePoints points;
  using namespace telemetry;
  const Gauge clash({.name = "elastrun_worker.restarts"}, points.registry);
  const Gauge suffix({.name = "batch.time.milliseconds.sum"}, points.registry);
  const Gauge same({.name = "queue_length"}, points.registry);
  const Gauge scoped({.name = "queue.length", .scope = "other"}, points.registry);
  for (const auto* gauge : {&clash, &suffix, &same, &scoped}) gauge->set(1);
  const Gauge bytes({.name = "bytes", .label_keys = {"k"}}, points.registry);
  bytes.with({"\xfe"}).set(1);
  bytes.with({"\xff"}).set(1);  // as text they are the same
  const auto page = text(points.snapshot(), {.tells_refused = true});
  CHECK(lines(page, "elastrun_page_refused") == "elastrun_page_refused 4\n");
  CHECK(lines(page, "queue_length") ==
        "queue_length -3\n"
        "queue_length{otel_scope_name=\"other\"} 1\n");
}

TEST_CASE("exposition: who asks for OpenMetrics gets it") {
  const auto is_open = [](std::string_view accept) {
    return form_for(accept) == PageForm::OpenMetrics;
  };
  CHECK(is_open("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
  CHECK(is_open("text/plain, application/openmetrics-text; version=1.0.0; q=0.7"));
  CHECK_FALSE(is_open("application/openmetrics-text; version=2.0.0"));
  CHECK_FALSE(is_open("text/plain"));
  CHECK_FALSE(is_open(""));
}
