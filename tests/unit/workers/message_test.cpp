// SPDX-License-Identifier: Apache-2.0
#include "workers/message.hpp"

#include "worker/summary.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <initializer_list>
#include <string>

namespace elastrun::workers {
namespace {

template <class T>
T parsed(std::string_view packet) {
  auto message = parse_message(packet);
  REQUIRE_MESSAGE(message.has_value(), (message ? "" : message.error().text));
  REQUIRE(std::holds_alternative<T>(*message));
  return std::get<T>(*message);
}

MetricSample metric(const std::string& members) {
  return parsed<MetricSample>(R"({"kind":"metric","name":"a","value":1,)" + members + "}");
}

void refused(std::initializer_list<std::string_view> packets) {
  for (const auto packet : packets) {
    CAPTURE(packet);
    const auto message = parse_message(packet);
    REQUIRE_FALSE(message.has_value());
    CHECK(message.error().code == Code::Protocol);
  }
}

TEST_CASE("message: each kind is read") {
  CHECK(parsed<StepDone>(R"({"kind":"step","step":12})").step == 12);
  CHECK(parsed<CheckpointDone>(R"({"kind":"checkpoint","step":-1})").step == -1);
  CHECK(parsed<CheckpointDone>(R"({"kind":"checkpoint","step":-2})").step == -2);
  const auto metric =
      parsed<MetricSample>(R"({"kind":"metric","name":"loss","value":0.5,"group":"train"})");
  CHECK(metric.name == "loss");
  CHECK(metric.value == 0.5);
  CHECK(metric.group == "train");
  const auto event = parsed<WorkerEvent>(
      R"({"kind":"event","name":"epoch","attributes":{"n":3,"x":1.5,"t":"a","b":true,"z":null}})");
  CHECK(event.name == "epoch");
  REQUIRE(event.attributes.size() == 5);
  CHECK(event.attributes[0].second == telemetry::Value(std::int64_t{3}));
  CHECK(event.attributes[3].second == telemetry::Value(true));
  CHECK(event.attributes[4].second == telemetry::Value(std::monostate{}));
}

TEST_CASE("message: a metric may be many samples, an event of an earlier time") {
  const auto metric = parsed<MetricSample>(
      R"({"kind":"metric","name":"a","value":3,"count":4,"sum":10,"min":1,"max":5})");
  REQUIRE(metric.batch);
  CHECK(metric.batch->count == 4);
  CHECK(metric.batch->sum == 10);
  CHECK(metric.batch->min == 1);
  CHECK(metric.batch->max == 5);
  for (const std::string_view odd :
       {R"({"kind":"metric","name":"a","value":3,"count":4})",
        R"({"kind":"metric","name":"a","value":3,"count":0,"sum":1,"min":1,"max":1})",
        R"({"kind":"metric","name":"a","value":3,"count":-1,"sum":1,"min":1,"max":1})",
        R"({"kind":"metric","name":"a","value":3,"count":2,"sum":"nan","min":1,"max":1})",
        R"({"kind":"metric","name":"a","value":3,"count":"2","sum":{},"min":[],"max":null})"}) {
    CAPTURE(odd);
    CHECK_FALSE(parsed<MetricSample>(odd).batch);
  }
  CHECK(parsed<WorkerEvent>(R"({"kind":"event","name":"e","time":12.5})").time == 12.5);
  for (const std::string_view odd : {"-1", "0", "1e300", "\"nan\"", "\"inf\"", "{}", "null"}) {
    CAPTURE(odd);
    const auto packet = R"({"kind":"event","name":"e","time":)" + std::string(odd) + "}";
    CHECK_FALSE(parsed<WorkerEvent>(packet).time);
  }
}

TEST_CASE("message: a counter says by how much it has risen") {
  CHECK_FALSE(parsed<MetricSample>(R"({"kind":"metric","name":"a","value":3})").counts);
  const auto risen = parsed<MetricSample>(
      R"({"kind":"metric","type":"counter","name":"a","value":3,"group":"g"})");
  CHECK(risen.counts);
  CHECK(risen.value == 3);
  CHECK(risen.group == "g");
  for (const std::string_view odd : {"-1", "\"nan\"", "\"inf\"", "\"-inf\""}) {
    CAPTURE(odd);
    CHECK_FALSE(parse_message(R"({"kind":"metric","type":"counter","name":"a","value":)" +
                              std::string(odd) + "}"));
  }
}

TEST_CASE("message: entries of a recorder of goodput") {
  const auto said = parsed<GoodputEntries>(
      R"({"kind":"goodput","job":"night","lost":3,"entries":[{"step_count":4,"step_start_time":1.5},)"
      R"({"custom_badput_event_type":"eval","custom_badput_event_end_time":2},{"another":1},)"
      R"({"step_count":4,"step_end_time":2.5}]})");
  CHECK(said.job == "night");
  CHECK(said.lost == 3);
  REQUIRE(said.entries.size() == 3);  // what means nothing is left out
  CHECK(said.entries[0].entry.kind == goodput::MeasurementKind::Step);
  CHECK(said.entries[0].entry.step == 4);
  CHECK(said.entries[0].entry.time == 1.5);
  CHECK(said.entries[0].members.size() == 2);
  CHECK(said.entries[1].name == "EVAL");
  CHECK(said.entries[2].entry.kind == goodput::MeasurementKind::StepEnd);
  CHECK(step_of(Message(said)) == 4);
  CHECK(step_of(StepDone{7}) == 7);
  CHECK_FALSE(step_of(CheckpointDone{7}));
  CHECK(parsed<GoodputEntries>(R"({"kind":"goodput","entries":[],"lost":-3})").lost == 0);
  CHECK_FALSE(said.by_hooks);
  CHECK(parsed<GoodputEntries>(R"({"kind":"goodput","hooks":true,"entries":[]})").by_hooks);
  CHECK_FALSE(parsed<GoodputEntries>(R"({"kind":"goodput","hooks":1,"entries":[]})").by_hooks);
  refused({R"({"kind":"goodput"})", R"({"kind":"goodput","entries":{}})"});
}

TEST_CASE("message: an entry that cannot be read costs only itself, and is counted") {
  const auto said = parsed<GoodputEntries>(
      R"({"kind":"goodput","lost":2,"entries":[{"step_count":1,"step_start_time":1},7,)"
      R"({"step_count":100000000000000000,"step_start_time":2},{"step_start_time":3},)"
      R"({"step_count":"x","step_start_time":4},{"step_count":2,"step_start_time":5}]})");
  REQUIRE(said.entries.size() == 2);
  CHECK(said.entries[1].entry.step == 2);
  CHECK(said.refused == 4);
  CHECK(said.lost == 6);
  CHECK(said.refusal == "an entry is a JSON object");
}

TEST_CASE("message: half a character in a text costs only that character") {
  const auto name = [](std::string_view text) {
    return parsed<MetricSample>(R"({"kind":"metric","value":1,"name":")" + std::string(text) +
                                "\"}")
        .name;
  };
  CHECK(name(R"(a\ud800b)") == "a\uFFFDb");
  CHECK(name(R"(a\udc00)") == "a\uFFFD");
  CHECK(name(R"(\ud800\ud83d\ude00)") == "\uFFFD\U0001F600");
  CHECK(name(R"(\ud800\u0041)") == "\uFFFDA");
  CHECK(name(R"(\\ud800\ud800)") == "\\ud800\uFFFD");  // the first is a backslash, then letters
  CHECK(name("a\xff") == "a\uFFFD");
  const auto said = parsed<GoodputEntries>(
      R"({"kind":"goodput","entries":[{"custom_badput_event_type":"\ud800",)"
      R"("custom_badput_event_start_time":1},{"step_count":2,"step_start_time":5}]})");
  CHECK(said.entries.size() == 2);
  CHECK(said.lost == 0);
  refused({R"({"kind":"\ud8)", R"({"kind":"\)", R"({"kind":"\ud800)"});
}

TEST_CASE("message: a timer is set and released") {
  const auto set = parsed<TimerSet>(
      R"({"kind":"timer","id":7,"scope":"train.py#57","deadline":12.5,"after":2,"signal":15})");
  CHECK(set.id == 7);
  CHECK(set.scope == "train.py#57");
  CHECK(set.deadline == 12.5);
  CHECK(set.after == 2);
  CHECK(set.signal == 15);
  CHECK(parsed<TimerSet>(R"({"kind":"timer","id":0,"scope":"","deadline":1})").signal == 9);
  CHECK_FALSE(parsed<TimerSet>(R"({"kind":"timer","id":7,"scope":"a"})").deadline);
  CHECK_FALSE(parsed<TimerSet>(R"({"kind":"timer","id":7,"scope":"a","deadline":null})").deadline);
  refused({R"({"kind":"timer","scope":"a"})", R"({"kind":"timer","id":-1,"scope":"a"})",
           R"({"kind":"timer","id":1})", R"({"kind":"timer","id":1,"scope":"a","deadline":"nan"})",
           R"({"kind":"timer","id":1,"scope":"a","deadline":{}})",
           R"({"kind":"timer","id":1,"scope":"a","deadline":1,"after":"inf"})",
           R"({"kind":"timer","id":1,"scope":"a","deadline":1,"signal":-1})",
           R"({"kind":"timer","id":1,"scope":"a","deadline":1,"signal":65})",
           R"({"kind":"timer","id":1,"scope":"a","deadline":1,"signal":"KILL"})"});
}

TEST_CASE("message: a phase has a name, and may have an end") {
  const auto phase = parsed<PhaseEntered>(R"({"kind":"phase","phase":"eval"})");
  CHECK(phase.name == "eval");
  CHECK_FALSE(phase.at_most);
  const auto most = [](std::string_view what) {
    const auto text = fmt::format(R"({{"kind":"phase","phase":"eval","at_most":{}}})", what);
    const auto read = parse_message(text);
    return read ? std::get<PhaseEntered>(*read).at_most : std::optional(Duration(-1));
  };
  CHECK(most("90.5") == std::chrono::milliseconds(90'500));
  CHECK_FALSE(most("null"));
  for (const std::string_view long_time : {"1e300", "\"inf\""}) {
    CHECK(most(long_time) > std::chrono::hours(24 * 365));
  }
  for (const std::string_view bad : {"0", "-1", "\"nan\"", "\"soon\"", "[]", "true"}) {
    CAPTURE(bad);
    CHECK(most(bad) == Duration(-1));  // refused
  }
  refused(
      {R"({"kind":"phase"})", R"({"kind":"phase","phase":""})", R"({"kind":"phase","phase":7})"});
}

TEST_CASE("message: stacks are offered with a signal that can be handled") {
  const auto offer = parsed<StacksOffered>(R"({"kind":"stacks","signal":60,"descriptor":5})");
  CHECK(offer.signal == 60);
  CHECK(offer.descriptor == 5);
  CHECK(offer.thread == 0);
  CHECK(
      parsed<StacksOffered>(R"({"kind":"stacks","signal":60,"descriptor":5,"thread":7})").thread ==
      7);
  refused({R"({"kind":"stacks"})", R"({"kind":"stacks","signal":9,"descriptor":5})",
           R"({"kind":"stacks","signal":19,"descriptor":5})",
           R"({"kind":"stacks","signal":0,"descriptor":5})",
           R"({"kind":"stacks","signal":60,"descriptor":-1})",
           R"({"kind":"stacks","signal":60,"descriptor":5,"thread":-1})",
           R"({"kind":"stacks","signal":60,"descriptor":5,"thread":"7"})",
           R"({"kind":"stacks","signal":60,"descriptor":4294967296})"});
}

TEST_CASE("message: a metric may name its training step") {
  CHECK_FALSE(metric(R"("each":false)").step);
  CHECK(metric(R"("step":109)").step == 109);
  CHECK_FALSE(metric(R"("step":-1)").step);
  CHECK_FALSE(metric(R"("step":"9")").step);
}

TEST_CASE("message: numbers that JSON does not have come as text") {
  CHECK(std::isnan(parsed<MetricSample>(R"({"kind":"metric","name":"l","value":"nan"})").value));
  CHECK(std::isinf(parsed<MetricSample>(R"({"kind":"metric","name":"l","value":"-inf"})").value));
}

TEST_CASE("message: what means nothing is refused with a sentence") {
  refused({"", "{", "[]", "null", "\xff", R"({"step":1})", R"({"kind":"dance"})", R"({"kind":5})",
           R"({"kind":"step"})", R"({"kind":"step","step":-1})", R"({"kind":"step","step":1.5})",
           R"({"kind":"step","step":18446744073709551615})", R"({"kind":"metric","value":1})",
           R"({"kind":"metric","name":"","value":1})",
           R"({"kind":"metric","name":"x","value":"many"})", R"({"kind":"event"})",
           R"({"kind":"event","name":"x","attributes":[]})", R"({"kind":"checkpoint","step":-3})"});
  CHECK(parse_message(R"({"kind":"step","step":-1})").error().text ==
        "a message of a worker of kind step has no valid `step`");
}

TEST_CASE("message: a packet cut at any length does no harm") {
  const std::string_view whole = R"({"kind":"event","name":"x","attributes":{"a":[1,{"b":2}]}})";
  CHECK(parse_message(whole).has_value());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_FALSE(parse_message(whole.substr(0, size)).has_value());
  }
}

TEST_CASE("message: limits hold") {
  std::string many = R"({"kind":"event","name":"x","attributes":{)";
  for (std::size_t i = 0; i <= kMaxAttributes; ++i)
    many += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  CHECK_FALSE(parse_message(many + "}}").has_value());
  CHECK_FALSE(parse_message(std::string(kMaxPacket + 1, ' ')).has_value());
  CHECK_FALSE(parse_message(std::string(kMaxPacket, '[')).has_value());
  CHECK_FALSE(
      parse_message(R"({"kind":"metric","value":1,"name":")" + std::string(300, 'x') + "\"}")
          .has_value());
}

bool is_refused(const std::string& packet) {
  return !parse_message(packet).has_value();
}

std::string histogram(const std::string& members) {
  return R"({"kind":"metric","type":"histogram","name":"h","value":1,"sum":4,"min":1,"max":2,)" +
         members + "}";
}

TEST_CASE("metric message: labels, unit, help and the time of a sample are read") {
  const auto one = metric(R"("labels":{"layer":3,"a":"b","rank":"9","":"x","flag":true},)"
                          R"("unit":"s","help":"A help.","time":1767323045.5,"each":true)");
  REQUIRE(one.meaning);
  using Labels = std::vector<std::pair<std::string, std::string>>;
  // By name; what the agent says itself is not the worker's to say.
  CHECK(one.meaning->labels ==
        Labels{{"a", "b"}, {"exported_rank", "9"}, {"flag", "true"}, {"layer", "3"}});
  CHECK(one.meaning->unit == "s");
  CHECK(one.meaning->help == "A help.");
  CHECK(one.time == 1767323045.5);
  CHECK(one.each);
  CHECK_FALSE(metric(R"("labels":{},"unit":"")").meaning);
  CHECK_FALSE(metric(R"("time":-1)").time);
  CHECK_FALSE(metric(R"("time":1e300)").time);
}

TEST_CASE("metric message: labels without end are refused") {
  std::string many;
  for (int i = 0; i < 17; ++i) many += fmt::format("{}\"l{}\":1", i == 0 ? "" : ",", i);
  const std::string begin = R"({"kind":"metric","name":"a","value":1,"labels":)";
  CHECK(is_refused(begin + '{' + many + "}}"));
  CHECK(is_refused(begin + "[1]}"));
  CHECK(is_refused(begin + "{\"a\":\"" + std::string(257, 'x') + "\"}}"));
  CHECK(is_refused(begin + "{\"" + std::string(257, 'x') + "\":1}}"));
}

TEST_CASE("metric message: a histogram brings its buckets, at their scale") {
  const auto sample = parsed<MetricSample>(
      histogram(R"("count":4,"scale":5,"zeros":1,"buckets":[[-1,1],[31,1]],"negative":[[0,1]])"));
  REQUIRE(sample.batch);
  REQUIRE(sample.batch->sketch);
  telemetry::Sketch same;
  for (const double value : {0.0, 1.0, 2.0, -1.01}) same.add(value);
  CHECK(*sample.batch->sketch == same);
  CHECK(parsed<MetricSample>(histogram(R"("count":2,"scale":-3,"buckets":[[0,2]])"))
            .batch->sketch->scale() == -3);
}

TEST_CASE("metric message: a histogram that cannot be one is refused, and takes no memory") {
  for (const char* const members : {R"("count":2,"buckets":[[0,1]])",  // another number of values
                                    R"("count":1,"buckets":[[0,1]],"scale":6)",   // finer than ours
                                    R"("count":1,"buckets":[[0,1]],"scale":-9)",  //
                                    R"("count":2,"buckets":[[0,1],[2048,1]])",    // far apart
                                    R"("count":2,"buckets":[[-35000,1],[35000,1]])",  //
                                    R"("count":1,"buckets":[[1000000000,1]])",    // of no double
                                    R"("count":1,"buckets":[[0,0],[1,1]])",       //
                                    R"("count":1,"buckets":[[0,-1],[1,2]])",      //
                                    R"("count":1,"buckets":[[0.5,1]])",           //
                                    R"("count":1,"buckets":[0,1])",               //
                                    R"("count":1,"buckets":{"0":1})",             //
                                    R"("count":1,"zeros":-1,"buckets":[[0,2]])",  //
                                    R"("buckets":[[0,1]])"}) {
    CAPTURE(members);
    CHECK(is_refused(histogram(members)));
  }
}

TEST_CASE("metric message: samples come one by one, with their series") {
  const auto told = parsed<SamplesTold>(
      R"({"kind":"samples","series":[["g","a"],["g","b",{"l":1},"s","h"]],"samples":)"
      R"([[0,1767323045.25,0.5],[1,1767323046,"nan",7],[0,1767323047,2,-3]],)"
      R"("suppressed":{"g":3,"h":0,"i":"x"}})");
  REQUIRE(told.series.size() == 2);
  CHECK_FALSE(told.series[0].meaning);
  CHECK(told.series[1].meaning->help == "h");
  REQUIRE(told.samples.size() == 3);
  CHECK(told.samples[0].time == 1767323045.25);
  CHECK(told.samples[1].value != told.samples[1].value);
  CHECK(told.samples[1].step == 7);
  CHECK_FALSE(told.samples[2].step);
  CHECK(told.suppressed == std::vector<std::pair<std::string, std::uint64_t>>{{"g", 3}});
}

TEST_CASE("metric message: samples that mean nothing are refused as a packet") {
  const auto packet = [](const char* series, const char* samples) {
    return fmt::format(R"({{"kind":"samples","series":{},"samples":{}}})", series, samples);
  };
  CHECK_FALSE(is_refused(packet("[]", "[]")));
  CHECK(is_refused(packet("3", "[]")));
  CHECK(is_refused(packet("[]", "{}")));
  for (const char* const series : {"[3]", "[[]]", R"([["g"]])", R"([["g",""]])", R"([["g",3]])",
                                   R"([[3,"a"]])", R"([["g","a",3]])"}) {
    CAPTURE(series);
    CHECK(is_refused(packet(series, "[]")));
  }
  for (const char* const samples : {"[3]", "[[0]]", "[[1,1,1]]", "[[-1,1,1]]", "[[0,0,1]]",
                                    R"([[0,1,"x"]])", "[[0,1,1,1,1]]", "[[0,1e10,1]]"}) {
    CAPTURE(samples);
    CHECK(is_refused(packet(R"([["g","a"]])", samples)));
  }
}

}  // namespace
}  // namespace elastrun::workers
