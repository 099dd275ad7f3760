// SPDX-License-Identifier: Apache-2.0
#include "export/statsd.hpp"

#include "core/text.hpp"
#include "sample_points.hpp"

#include <algorithm>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Cursor;

namespace {

std::vector<std::string> lines_of(const std::vector<std::string>& datagrams) {
  return datagrams.empty() ? std::vector<std::string>() : split(join(datagrams, "\n"), '\n');
}

bool has(const std::vector<std::string>& lines, std::string_view line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

}  // namespace

TEST_CASE("statsd: counters rise, gauges are set, stats are summarised") {
  SamplePoints points;
  Cursor delta(points.registry, Cursor::Temporality::Delta);
  const auto lines = lines_of(statsd_datagrams(points.registry.collect(delta), {.prefix = "job."}));
  CHECK(has(lines, "job.elastrun.worker.restarts:2|c|#role:trainer"));
  CHECK(has(lines, "job.load.share:0.25|g|#cpu:0"));
  CHECK(has(lines, "job.queue.length:-3|c"));
  CHECK(has(lines, "job.batch.time.count:3|c"));
  CHECK(has(lines, "job.batch.time.mean:2.5|g"));
  CHECK(has(lines, "job.clock.drift.min:0|g"));
  CHECK(has(lines, "job.clock.drift.min:-1|g"));
  for (const auto& line : lines) {
    CHECK(line.find("nan") == std::string::npos);
    CHECK(line.find("inf") == std::string::npos);
  }
  // Nothing has risen since; gauges are told again.
  const auto later = lines_of(statsd_datagrams(points.registry.collect(delta), {.tags = false}));
  CHECK(later == std::vector<std::string>{"load.share.0:0.25|g"});
}

TEST_CASE("statsd: a datagram has whole lines only, and a line that is too long is left out") {
  SamplePoints points;
  Cursor delta(points.registry, Cursor::Temporality::Delta);
  const telemetry::Gauge wide({.name = "wide", .label_keys = {"k"}}, points.registry);
  wide.with({std::string(100, 'x')}).set(1);
  const auto datagrams = statsd_datagrams(points.registry.collect(delta), {.datagram = 64});
  CHECK(datagrams.size() > 3);
  for (const auto& datagram : datagrams) {
    CHECK(datagram.size() <= 64);
    CHECK(datagram.find("wide") == std::string::npos);
    CHECK_FALSE(datagram.ends_with('\n'));
  }
  CHECK(statsd_datagrams({}).empty());
}
