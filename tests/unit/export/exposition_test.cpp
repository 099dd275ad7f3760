// SPDX-License-Identifier: Apache-2.0
#include "export/exposition.hpp"

#include "sample_points.hpp"

#include <doctest/doctest.h>
#include <set>

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

Exemplar an_exemplar(std::string trace) {
  return {
      {{"trace_id", std::move(trace)}}, 2.5, WallTime(std::chrono::milliseconds(1763690001500))};
}

}  // namespace

TEST_CASE("exposition: a gauge does not end as a histogram does") {
  telemetry::Snapshot snapshot;
  auto& point = snapshot.points.emplace_back();
  point.spec = std::make_shared<telemetry::Spec>(telemetry::Spec{.name = "process.thread.count"});
  point.kind = telemetry::Kind::Gauge;
  point.value = std::int64_t{3};
  CHECK(families_of(snapshot).all.at(0).name == "process_thread_number");
  point.kind = telemetry::Kind::Counter;
  CHECK(families_of(snapshot).all.at(0).name == "process_thread_count");
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
  CHECK(prometheus_labels({{"a.b", "1"}, {"a_b", "2"}, {"t", true}}) ==
        std::vector<Label>{{"a_b", "1;2"}, {"t", "true"}});
}

TEST_CASE("exposition: a label of the user's that a line has by itself is another one") {
  telemetry::Snapshot snapshot;
  auto& point = snapshot.points.emplace_back();
  point.spec = std::make_shared<telemetry::Spec>(telemetry::Spec{.name = "n", .scope = "g"});
  point.labels = {{"le", "1"}, {"otel.scope.name", "x"}, {"quantile", "two"}};
  const auto shown = [&](telemetry::Kind kind) {
    point.kind = kind;
    std::string names;
    const auto families = families_of(snapshot);
    for (const auto& [key, value] : families.all.at(0).samples.at(0).labels) {
      names += key + '=' + value + ' ';
    }
    return names;
  };
  CHECK(shown(telemetry::Kind::Gauge) ==
        "le=1 exported_otel_scope_name=x quantile=two otel_scope_name=g ");
  CHECK(shown(telemetry::Kind::Histogram) ==
        "exported_le=1 exported_otel_scope_name=x quantile=two otel_scope_name=g ");
  CHECK(shown(telemetry::Kind::Stat) ==
        "le=1 exported_otel_scope_name=x exported_quantile=two otel_scope_name=g ");
  point.labels = {{"otel_scope_name", "x"}, {"exported_otel_scope_name", "y"}};
  CHECK(shown(telemetry::Kind::Gauge) ==
        "exported_otel_scope_name=y exported_exported_otel_scope_name=x otel_scope_name=g ");
}

TEST_CASE("exposition: series of one instrument may have different labels") {
  telemetry::Snapshot snapshot;
  const auto spec = std::make_shared<const telemetry::Spec>(telemetry::Spec{.name = "n"});
  const auto add = [&](std::vector<telemetry::Attribute> labels) {
    telemetry::Point point;
    point.spec = spec;
    point.kind = telemetry::Kind::Gauge;
    point.labels = std::move(labels);
    point.value = std::int64_t{1};
    snapshot.points.push_back(std::move(point));
  };
  add({{"z.y", "1"}, {"a.b", "2"}});
  add({{"a.b", "3"}, {"z.y", "4"}});
  add({{"otel.metric.overflow", true}});
  add({});
  add({{"a.b", "2"}, {"z_y", "1"}});  // the first one again
  const auto families = families_of(snapshot);
  CHECK(families.refused == 1);
  CHECK(prometheus_text(families.all) ==
        "# TYPE n gauge\nn{a_b=\"2\",z_y=\"1\"} 1\nn{a_b=\"3\",z_y=\"4\"} 1\n"
        "n{otel_metric_overflow=\"true\"} 1\nn 1\n");
}

TEST_CASE("exposition: the agent's and the machine's come first, and what is refused is told") {
  telemetry::Snapshot snapshot;
  const auto add = [&](std::string scope, std::string name, telemetry::Kind kind) {
    telemetry::Point point;
    point.spec = std::make_shared<const telemetry::Spec>(
        telemetry::Spec{.name = std::move(name), .scope = std::move(scope)});
    point.kind = kind;
    point.value = std::int64_t{1};
    snapshot.points.push_back(std::move(point));
  };
  using telemetry::Kind;
  add("a", "elastrun.restarts", Kind::Gauge);
  add("a", "system.time", Kind::Gauge);
  add("a", "elastrun.page.refused", Kind::Counter);
  add("elastrun.agent", "elastrun.restarts", Kind::Counter);
  add("", "system.time", Kind::Counter);
  const auto families = families_of(snapshot, {.scope_labels = false, .tells_refused = true});
  CHECK(families.refused == 3);
  const auto page = prometheus_text(families.all);
  CHECK(lines(page, "# TYPE") ==
        "# TYPE elastrun_page_refused gauge\n# TYPE elastrun_restarts_total counter\n"
        "# TYPE system_time_total counter\n");
  CHECK(lines(page, "elastrun_page_refused") == "elastrun_page_refused 3\n");
  snapshot.points.resize(1);
  CHECK(families_of(snapshot, {.tells_refused = true}).all.size() == 1);
}

TEST_CASE("exposition: the text format, line by line") {
  SamplePoints points;
  const auto page = prometheus_text(families_of(points.snapshot()).all);
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
  const auto families =
      families_of(points.snapshot(), {.bounds = {0.1, 1, 1e6}, .scope_labels = false}).all;
  CHECK(lines(prometheus_text(families), "elastrun_rendezvous") ==
        "elastrun_rendezvous_duration_seconds_bucket{le=\"0.1\"} 0\n"
        "elastrun_rendezvous_duration_seconds_bucket{le=\"1\"} 3\n"
        "elastrun_rendezvous_duration_seconds_bucket{le=\"1e+06\"} 4\n"
        "elastrun_rendezvous_duration_seconds_bucket{le=\"+Inf\"} 4\n"
        "elastrun_rendezvous_duration_seconds_sum 3.75\n"
        "elastrun_rendezvous_duration_seconds_count 4\n");
  const auto open = openmetrics_text(families);
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
  const auto page = openmetrics_text(
      families_of(points.snapshot(), {.resource = {{"service.name", "elastrun.agent"}}}).all);
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

TEST_CASE("exposition: exemplars stand behind buckets and counters, in OpenMetrics only") {
  SamplePoints points;
  auto families = families_of(points.snapshot()).all;
  for (auto& family : families) {
    for (auto& sample : family.samples) {
      sample.exemplar = an_exemplar("5b8e");
      if (!sample.buckets.empty()) sample.buckets.back().exemplar = an_exemplar("5b8e");
    }
  }
  const auto page = openmetrics_text(families);
  const std::string text = " # {trace_id=\"5b8e\"} 2.5 1763690001.500\n";
  CHECK(lines(page, "hw_energy_joules_total").ends_with(text));
  CHECK(lines(page, "elastrun_rendezvous_duration_seconds_bucket").ends_with(text));
  CHECK(lines(page, "load_share_ratio").find('#') == std::string::npos);
  CHECK(prometheus_text(families).find("5b8e") == std::string::npos);
  families[5].samples[0].exemplar = an_exemplar(std::string(121, 'x'));
  CHECK(lines(openmetrics_text(families), "hw_energy_joules_total").find('#') == std::string::npos);
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
  const auto families = families_of(points.snapshot());
  CHECK(families.refused == 4);
  const auto page = prometheus_text(families.all);
  CHECK(lines(page, "queue_length") ==
        "queue_length -3\n"
        "queue_length{otel_scope_name=\"other\"} 1\n");
}

TEST_CASE("exposition: who asks for OpenMetrics gets it") {
  CHECK(wants_openmetrics("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
  CHECK(wants_openmetrics("text/plain, application/openmetrics-text; version=1.0.0; q=0.7"));
  CHECK_FALSE(wants_openmetrics("application/openmetrics-text; version=2.0.0"));
  CHECK_FALSE(wants_openmetrics("text/plain"));
  CHECK_FALSE(wants_openmetrics(""));
}
