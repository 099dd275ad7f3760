// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"
#include "export/viewer_files.hpp"

#include <cmath>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Record;

TEST_CASE("chrome trace: each event is a line with a comma, so the list may end anywhere") {
  const auto line = trace_line({TraceEvent::Phase::Complete,
                                "step",
                                "train",
                                Duration(1'500'500),
                                Duration(2'000),
                                3,
                                0,
                                {{"n", std::int64_t{7}}}});
  CHECK(line.ends_with(",\n"));
  const std::string trace =
      std::string(kTraceBegin) + line + trace_process(3, "rank 2", 4) + trace_end();
  const auto value = parse_json(trace);
  REQUIRE(value);
  const auto& first = value->at(0);
  CHECK(first.at("ph").as_string() == "X");
  CHECK(first.at("ts").to_number<double>() == 1500.5);
  CHECK(first.at("dur").to_number<double>() == 2);
  CHECK(first.at("args").at("n").to_number<int>() == 7);
  CHECK(value->at(1).at("name").as_string() == "process_name");
  CHECK(value->at(2).at("args").at("sort_index").to_number<int>() == 4);
}

TEST_CASE("chrome trace: one without any event is JSON, too") {
  CHECK(parse_json(std::string(kTraceBegin) + trace_end()));
}

TEST_CASE("chrome trace: phases have what they need") {
  using Phase = TraceEvent::Phase;
  const auto text = [](Phase phase) { return trace_line({phase, "x"}); };
  CHECK(text(Phase::Instant).find("\"s\":\"p\"") != std::string::npos);
  CHECK(text(Phase::Counter).find("\"s\"") == std::string::npos);
}

TEST_CASE("chrome trace: records become what they are") {
  Record record;
  record.name = "worker.ended";
  record.scope = "elastrun.agent";
  record.stamp.mono = TimePoint(Duration(5000));
  record.attributes = {{"rank", std::int64_t{2}}, {"odd", std::nan("")}, {"bytes", "\xff"}};
  const auto instant = trace_event_of(record);
  REQUIRE(instant);
  CHECK(instant->process == 3);
  CHECK(instant->category == "elastrun.agent");
  CHECK(parse_json(trace_line(*instant).substr(0, trace_line(*instant).size() - 2)));

  record.kind = Record::Kind::SpanEnd;
  CHECK_FALSE(trace_event_of(record));
  record.attributes.emplace_back("duration_ns", std::int64_t{3000});
  CHECK(trace_event_of(record)->time == Duration(2000));

  record.kind = Record::Kind::Sample;
  CHECK_FALSE(trace_event_of(record));
  record.value = 0.5;
  CHECK(trace_event_of(record)->phase == TraceEvent::Phase::Counter);

  record.kind = Record::Kind::Window;
  CHECK_FALSE(trace_event_of(record));
  telemetry::Window window;
  window.aggregates = {{"mean", 0.5}, {"p99", {}}};
  record.window = std::make_shared<const telemetry::Window>(window);
  CHECK(trace_event_of(record)->arguments.size() == 1);
  window.no_data = true;
  record.window = std::make_shared<const telemetry::Window>(window);
  CHECK_FALSE(trace_event_of(record));
}
