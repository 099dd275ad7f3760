// SPDX-License-Identifier: Apache-2.0
#include "spec/sink_choices.hpp"

#include "spec/toml.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

using SinkKind = SinkChoice::Kind;

Override given(std::vector<std::string> items) {
  Override one{Opt::Metrics, {}, std::move(items), true, Origin::CommandLine, "--metrics"};
  return one;
}

std::string refusal_of(std::string_view text) {
  const auto sink = parse_sink_choice(text, "--metrics");
  REQUIRE(!sink);
  CHECK(sink.error().exit_code == 2);
  return sink.error().text + "\n" + sink.error().hint;
}

}  // namespace

TEST_CASE("metrics sinks: each has its name and argument") {
  CHECK(parse_sink_choice("console", "")->kind == SinkKind::Console);
  CHECK(parse_sink_choice("console:*", "")->argument == "*");
  const auto otlp = parse_sink_choice("otlp:http://c:1/x", "");
  REQUIRE(otlp.has_value());
  CHECK(otlp->kind == SinkKind::Otlp);
  CHECK(otlp->argument == "http://c:1/x");
  CHECK(otlp->text == "otlp:http://c:1/x");
  CHECK(parse_sink_choice("exec:a, b", "")->argument == "a, b");
}

TEST_CASE("metrics sinks: a page of Prometheus is in OpenMetrics where that word is behind it") {
  CHECK_FALSE(parse_sink_choice("prometheus:a", "")->openmetrics);
  const auto open = parse_sink_choice("prometheus:a;openmetrics", "");
  CHECK(open->openmetrics);
  CHECK(open->argument == "a");
  CHECK(refusal_of("prometheus:;openmetrics").find("needs FILE") != std::string::npos);
  CHECK(refusal_of("openmetrics:a").find("unknown sink 'openmetrics'") != std::string::npos);
}

TEST_CASE("metrics sinks: each sample or what a second comes to, as is said or usual") {
  CHECK(parse_sink_choice("console:g", "")->each);
  CHECK(parse_sink_choice("jsonl:a", "")->each);
  CHECK_FALSE(parse_sink_choice("jsonl:a;window=1s", "")->each);
  CHECK(parse_sink_choice("jsonl:a;window=1s", "")->argument == "a");
  CHECK_FALSE(parse_sink_choice("console;window=1s", "")->each);
  CHECK(parse_sink_choice("console;window=1s", "")->argument.empty());
  CHECK_FALSE(parse_sink_choice("tensorboard:d", "")->each);
  CHECK(parse_sink_choice("tensorboard:d;window=0", "")->each);
  // A command may have those words in it.
  CHECK(parse_sink_choice("exec:a;window=x y", "")->argument == "a;window=x y");
  CHECK(refusal_of("prometheus:a;window=1s").find("has no window") != std::string::npos);
  CHECK(refusal_of("jsonl:a;window=10s").find("'10s' is no window") != std::string::npos);
}

TEST_CASE("aggregations: patterns with what is summarised, and nothing else") {
  const auto all = stat_aggregations(given({"train.*=p95+p99", "a=b=mean"}));
  REQUIRE(all);
  REQUIRE(all->size() == 2);
  CHECK((*all)[0].second == std::vector<std::string>{"p95", "p99"});
  CHECK((*all)[1].first == "a=b");
  for (const char* const odd : {"a", "a=", "=mean", "a=p98", "a=mean+", "a=MEAN"}) {
    CAPTURE(odd);
    CHECK_FALSE(stat_aggregations(given({odd})).has_value());
  }
}

TEST_CASE("metrics sinks: what is none is refused with what there is") {
  CHECK(refusal_of("consol").find("did you mean console?") != std::string::npos);
  CHECK(refusal_of("x").find(known_metrics_sinks()) != std::string::npos);
  CHECK(refusal_of("jsonl").find("needs FILE") != std::string::npos);
  CHECK(refusal_of("jsonl:").find("for example jsonl:run.jsonl") != std::string::npos);
  CHECK(refusal_of("otlp:collector").find("http://HOST") != std::string::npos);
  CHECK(refusal_of("kubeflow").find("unknown sink 'kubeflow'") != std::string::npos);
  CHECK(refusal_of("plugin:./x.so").find("unknown sink 'plugin'") != std::string::npos);
  CHECK(refusal_of("statsd:h").find("unknown sink 'statsd'") != std::string::npos);
  CHECK(refusal_of(std::string_view("jsonl:a\0b", 9)).find("zero byte") != std::string::npos);
}

TEST_CASE("metrics sinks: each once, none is none, routes belong to their sink") {
  const auto sinks = metrics_sinks(given({"none", "console", "jsonl:a", "console"}),
                                   {{"jsonl:a", {"g", "n*", "warn"}, "f:1"},
                                    {"trace:t", {}, "f:2"},
                                    {"jsonl:a", {"h", "", ""}, "f:3"}});
  REQUIRE(sinks.has_value());
  REQUIRE(sinks->size() == 3);
  CHECK((*sinks)[0].routes.empty());
  CHECK((*sinks)[1].routes == std::vector<MetricsRoute>{{"g", "n*", "warn"}, {"h", "", ""}});
  CHECK((*sinks)[2].kind == SinkKind::Trace);
  const auto bad = metrics_sinks(given({}), {{"nothing:a", {}, "f:2"}});
  REQUIRE(!bad);
  CHECK(bad.error().text.starts_with("f:2: "));
}

TEST_CASE("metrics sinks: a variable separates them by commas") {
  const auto sinks = metrics_sinks(
      {Opt::Metrics, "console,exec:a,,b", {}, false, Origin::Variable, "PET_METRICS"}, {});
  REQUIRE(sinks.has_value());
  REQUIRE(sinks->size() == 2);
  CHECK((*sinks)[1].argument == "a,b");
}

TEST_CASE("metrics sinks: routes of a job file, and what is wrong with them") {
  const auto job = parse_toml(
      "[metrics]\nsinks = [\"console\"]\n[[metrics.route]]\nsink = \"jsonl:a\"\nname = \"x*\"\n",
      "f");
  REQUIRE(job.has_value());
  REQUIRE(job->metrics_routes.size() == 1);
  CHECK(job->metrics_routes[0].route.name == "x*");
  CHECK(job->metrics_routes[0].source == "f:3");
  for (const char* bad :
       {"route = 1", "route = [1]", "[[metrics.route]]\nname = \"x\"",
        "[[metrics.route]]\nsink = \"a\"\nsink2 = \"b\"",
        "[[metrics.route]]\nsink = \"a\"\nseverity = \"loud\"", "[[metrics.route]]\nsink = 1"}) {
    CAPTURE(bad);
    const auto refused = parse_toml("[metrics]\n" + std::string(bad), "f");
    REQUIRE(!refused);
    CHECK(refused.error().text.starts_with("f:"));
    CHECK(refused.error().exit_code == 2);
  }
}

}  // namespace elastrun::spec
