// SPDX-License-Identifier: Apache-2.0
#include "worker/summary.hpp"
#include "workers/message.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace elastrun::workers {
namespace {

MetricSample metric(const std::string& members) {
  const auto message = parse_message(R"({"kind":"metric","name":"a","value":1,)" + members + "}");
  REQUIRE_MESSAGE(message.has_value(), (message ? "" : message.error().text));
  return std::get<MetricSample>(*message);
}

bool is_refused(const std::string& packet) {
  return !parse_message(packet).has_value();
}

std::string histogram(const std::string& members) {
  return R"({"kind":"metric","type":"histogram","name":"h","value":1,"sum":4,"min":1,"max":2,)" +
         members + "}";
}

}  // namespace

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
  const auto message = parse_message(
      histogram(R"("count":4,"scale":5,"zeros":1,"buckets":[[-1,1],[31,1]],"negative":[[0,1]])"));
  REQUIRE(message);
  const auto& sample = std::get<MetricSample>(*message);
  REQUIRE(sample.batch);
  REQUIRE(sample.batch->sketch);
  telemetry::Sketch same;
  for (const double value : {0.0, 1.0, 2.0, -1.01}) same.add(value);
  CHECK(*sample.batch->sketch == same);
  const auto coarse = parse_message(histogram(R"("count":2,"scale":-3,"buckets":[[0,2]])"));
  REQUIRE(coarse);
  CHECK(std::get<MetricSample>(*coarse).batch->sketch->scale() == -3);
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
  const auto message =
      parse_message(R"({"kind":"samples","series":[["g","a"],["g","b",{"l":1},"s","h"]],"samples":)"
                    R"([[0,1767323045.25,0.5],[1,1767323046,"nan",7],[0,1767323047,2,-3]],)"
                    R"("suppressed":{"g":3,"h":0,"i":"x"}})");
  REQUIRE(message);
  const auto& told = std::get<SamplesTold>(*message);
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

}  // namespace elastrun::workers
