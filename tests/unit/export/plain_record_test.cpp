// SPDX-License-Identifier: Apache-2.0
#include "export/json_lines.hpp"
#include "export/record_line.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <string>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Record;

namespace {

Record full() {
  Record record;
  record.stamp.mono = TimePoint(std::chrono::nanoseconds(62956980664222));
  record.stamp.wall = WallTime(std::chrono::milliseconds(1767323045125));
  record.scope = "elastrun.worker";
  record.name = "step";
  record.value = std::int64_t{-17};
  record.attributes = {{"rank", std::int64_t{3}}, {"share", 0.25}, {"ok", true},
                       {"late", false},           {"none", {}},    {"text", "a b"}};
  return record;
}

/// Both readers take it, and see the same; `before` is what is overwritten.
void check_same(const std::string& line, Record before = {}) {
  CAPTURE(line);
  REQUIRE(read_plain_record(line, before));
  const auto other = from_json_line(line);
  REQUIRE(other);
  CHECK(before.kind == other->kind);
  CHECK(before.stamp.mono == other->stamp.mono);
  CHECK(before.stamp.wall - other->stamp.wall < std::chrono::microseconds(1));
  CHECK(other->stamp.wall - before.stamp.wall < std::chrono::microseconds(1));
  CHECK(before.scope == other->scope);
  CHECK(before.name == other->name);
  CHECK(before.value == other->value);
  CHECK(before.attributes == other->attributes);
}

TEST_CASE("plain entry: bare or in a payload, with the log's time; what is odd is left to JSON") {
  std::vector<telemetry::Attribute> members;
  double log_time = 0;
  const std::vector<telemetry::Attribute> step{
      {"job_name", "j"}, {"step_count", std::int64_t{7}}, {"step_start_time", 1.5}};
  const std::string bare = R"({"job_name": "j", "step_count": 7, "step_start_time": 1.5})";
  REQUIRE(read_plain_entry(bare, members, log_time));
  CHECK(members == step);
  CHECK(std::isnan(log_time));
  REQUIRE(read_plain_entry(R"({"log_time": 3, "payload": )" + bare + "}", members, log_time));
  CHECK(members == step);
  CHECK(log_time == 3);
  REQUIRE(read_plain_entry(R"({"job_name":"j","log_time":2.5})", members, log_time));
  CHECK(log_time == 2.5);
  for (const std::string odd :
       {"", "{}", "[]", R"({"step_count":7})", R"({"job_name":7})", R"({"job_name":"j","a":[]})",
        R"({"job_name":"j","a":1e3})", R"({"job_name":"j","job_name":"k"})",
        R"({"payload":{"job_name":"j"},"log_time":3})", R"({"job_name":"j"} x)"}) {
    CAPTURE(odd);
    CHECK_FALSE(read_plain_entry(odd, members, log_time));
  }
  for (std::size_t size = 0; size < bare.size(); ++size) {
    CHECK_FALSE(read_plain_entry(bare.substr(0, size), members, log_time));
  }
}

}  // namespace

TEST_CASE("plain step: the quick reader finds what the other one does, or leaves the line to it") {
  std::vector<telemetry::Attribute> members;
  double log_time = 0;
  for (const std::string entry :
       {R"({"job_name": "j", "step_count": 7, "step_start_time": 1.5})",
        R"({"job_name":"","step_count":-1,"step_start_time":3})",
        R"({"log_time": 3, "payload": {"job_name":"j","step_count":7,"step_start_time":0.25}})"}) {
    CAPTURE(entry);
    const auto step = read_plain_step(entry);
    REQUIRE(step);
    REQUIRE(read_plain_entry(entry, members, log_time));
    const std::vector<telemetry::Attribute> found{{"job_name", std::string(step->job)},
                                                  {"step_count", step->step},
                                                  {"step_start_time", members[2].second}};
    CHECK(members == found);
    CHECK(telemetry::as_real(members[2].second) == step->time);
    CHECK(fmt::to_string(log_time) == fmt::to_string(step->log_time));
    for (std::size_t size = 0; size < entry.size(); ++size) {
      CHECK_FALSE(read_plain_step(entry.substr(0, size)));
    }
    CHECK_FALSE(read_plain_step(entry + "}"));
  }
  for (const std::string odd :
       {R"({"job_name":"j","step_count":7.0,"step_start_time":1})",
        R"({"job_name":"j","step_count":7,"step_start_time":"1"})",
        R"({"job_name":"j","step_count":7,"step_start_time":1e3})",
        R"({"job_name":"j","step_count":7,"step_start_time":1,"lost_entries":2})",
        R"({"step_count":7,"job_name":"j","step_start_time":1})",
        R"({"job_name":"j","log_time":3,"step_count":7,"step_start_time":1})",
        R"({"job_name":"j\n","step_count":7,"step_start_time":1})"}) {
    CAPTURE(odd);
    CHECK_FALSE(read_plain_step(odd));
  }
}

TEST_CASE("plain record: what a journal holds is read as by the other reader") {
  auto record = full();
  check_same(to_json_line(record));
  record.attributes.resize(1);
  record.value = 2.5;
  check_same(to_json_line(record), full());
  record.attributes.clear();
  record.value = {};
  record.kind = Record::Kind::Sample;
  check_same(to_json_line(record), full());
}

TEST_CASE("plain record: spaces between its tokens, as other writers of JSON leave them") {
  check_same(
      R"({"time": 1767323045.125, "mono_ns": 52, "kind": "sample", "scope": "elastrun.worker", )"
      R"("name": "step", "value": 17})");
  check_same(R"( { "time" : 1767323045 , "mono_ns" : 52 , "kind" : "event" , "scope" : "a b" , )"
             R"("name" : "phase" , "attributes" : { "phase" : "running" , "n" : -1.5 } } )",
             full());
}

TEST_CASE("plain record: a time is read to the nanosecond, where it is written to it") {
  const auto with_time = [](const std::string& time) {
    return R"({"time":)" + time + R"(,"mono_ns":5,"kind":"event","scope":"s","name":"n"})";
  };
  Record record;
  REQUIRE(read_plain_record(with_time("1767323045.000000003"), record));
  CHECK(record.stamp.wall == WallTime(std::chrono::nanoseconds(1767323045000000003)));
  for (const auto* other : {"1767323045", "1767323045.25", "1767323045.0000000031", "1.5", "0.25",
                            "-1767323045.000000003", "123456789.000000003"}) {
    check_same(with_time(other));
  }
  for (const auto* none :
       {"1767323045.000000003e2", "1767323045.", "01767323045.000000003", "0767323045.000000003",
        "9000000000.000000000", "9999999999.000000003", "1767323045.000000003x"}) {
    CAPTURE(none);
    CHECK_FALSE(read_plain_record(with_time(none), record));
  }
}

TEST_CASE("plain record: a line cut anywhere is none, and neither is one with more behind it") {
  const auto line = to_json_line(full());
  Record record;
  for (std::size_t size = 0; size < line.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(read_plain_record(line.substr(0, size), record));
  }
  CHECK_FALSE(read_plain_record(line + " x", record));
  CHECK_FALSE(read_plain_record(line + "}", record));
}

TEST_CASE("plain record: what is not plain is left to the other reader") {
  const auto line = [](std::string_view rest) {
    return R"({"time":1.5,"mono_ns":2,"kind":"event","scope":"s","name":"n")" + std::string(rest) +
           "}";
  };
  Record record;
  CHECK(read_plain_record(line(R"(,"value":1)"), record));
  for (const auto* rest :
       {R"(,"value":"a\"b")", R"(,"value":1e3)", R"(,"value":12345678901234567890)", R"(,"new":1)",
        R"(,"attributes":{"a":1,"a":2})", R"(,"attributes":{"a":[1]})", R"(,"attributes":{})",
        R"(,"severity":"WARN")", ",\"value\":\"\xc3\xa4\"", ",\t\"value\":1"}) {
    CAPTURE(rest);
    CHECK_FALSE(read_plain_record(line(rest), record));
    CHECK(from_json_line(line(rest)).has_value());
  }
  for (const auto* rest :
       {R"(,"value":01)", R"(,"value":1.)", R"(,"value":-)", R"(,"value":tru)", R"(,"value":.5)",
        R"(,"value""attributes":{"a":1})", ",\"value\":\"\xff\"", ",\"value\":\"\t\""}) {
    CAPTURE(rest);
    CHECK_FALSE(read_plain_record(line(rest), record));
    CHECK_FALSE(from_json_line(line(rest)).has_value());
  }
}

TEST_CASE("series name: texts tell series apart, not what is the same for all of a worker or GPU") {
  Record record;
  record.kind = Record::Kind::Sample;
  record.name = "loss";
  record.attributes = {{"rank", std::int64_t{3}}, {"role", "trainer"}, {"total", true}};
  CHECK(series_name(record) == "loss");
  record.name = "system.cpu.time";
  record.attributes = {{"cpu.mode", "user"}, {"total", true}};
  CHECK(series_name(record) == "system.cpu.time/cpu.mode_user");
  record.name = "hw.gpu.utilization";
  record.attributes = {{"hw.id", "GPU-1"}, {"hw.type", "gpu"}, {"index", "0"}, {"hw.model", "H"}};
  CHECK(series_name(record) == "hw.gpu.utilization/index_0");
  record.attributes = {{"role", "mine"}};  // a label of the user's own
  CHECK(series_name(record) == "hw.gpu.utilization/role_mine");
}

TEST_CASE("series name: labels of a meaning stand behind the attributes, in lines of JSON, too") {
  Record record;
  record.kind = Record::Kind::Sample;
  record.name = "norm";
  record.value = 0.5;
  telemetry::Meaning meaning{"1", "Gradients.", {{"layer", "3"}}};
  record.meaning = std::make_shared<const telemetry::Meaning>(std::move(meaning));
  CHECK(to_json_line(record).ends_with(R"("value":0.5,"attributes":{"layer":"3"}})"));
  record.attributes = {{"rank", std::int64_t{1}}, {"role", "trainer"}};
  CHECK(series_name(record) == "norm/layer_3");
  CHECK(to_json_line(record).ends_with(R"("attributes":{"rank":1,"role":"trainer","layer":"3"}})"));
}
