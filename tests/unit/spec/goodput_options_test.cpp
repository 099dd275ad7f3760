// SPDX-License-Identifier: Apache-2.0
#include "spec/goodput_options.hpp"

#include "spec/merge.hpp"
#include "spec/toml.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

using namespace std::chrono_literals;

Answer<GoodputOptions> options_of(std::string_view toml) {
  const auto job = parse_toml(toml, "job.toml");
  REQUIRE(job);
  Values values;
  for (const auto& given : job->given) values.offer(given);
  return goodput_options(values);
}

std::string refusal_of(std::string_view toml) {
  const auto options = options_of(toml);
  REQUIRE(!options);
  CHECK(options.error().exit_code == 2);
  return options.error().text + "\n" + options.error().hint;
}

}  // namespace

TEST_CASE("goodput options: a window is a number of seconds, minutes, hours or days") {
  CHECK(parse_window("90") == 90s);
  CHECK(parse_window(" 90s ") == 90s);
  CHECK(parse_window("10m") == 10min);
  CHECK(parse_window("1h") == 1h);
  CHECK(parse_window("366d") == 366 * 24h);
  for (const auto* text : {"", "h", "0", "-1", "1.5h", "1w", "367d", "99999999999999999999", "1 0",
                           "9223372036854775807d"}) {
    CHECK_MESSAGE(!parse_window(text), text);
  }
}

TEST_CASE("goodput options: what nobody says") {
  const auto options = options_of("");
  REQUIRE(options);
  CHECK(options->interval == 30s);
  CHECK(options->windows == std::vector<Duration>{10min, 1h, 24h});
  CHECK(!options->alert);
}

TEST_CASE("goodput options: an alert with its window and command, windows in order") {
  const auto options = options_of(
      "[goodput]\ninterval = 0.5\nwindows = [60, \"1m\", 5]\nalert_below = 0.8\n"
      "window = \"2m\"\nalert_command = [\"notify\", \"a, b\"]\n");
  REQUIRE(options);
  CHECK(options->interval == 500ms);
  CHECK(options->windows == std::vector<Duration>{5s, 60s});
  REQUIRE(options->alert);
  CHECK(*options->alert == GoodputOptions::Alert{0.8, 2min, {"notify", "a, b"}});
  CHECK(!options_of("[goodput]\nalert_below = 0\nwindow = \"1h\"\nalert_command = []\n")->alert);
  CHECK(options_of("[goodput]\nwindows = []\n")->windows.empty());
}

TEST_CASE("goodput options: a refusal says where the value is, what is wrong and what is right") {
  CHECK(refusal_of("[goodput]\n\nalert_below = 80").starts_with("job.toml:3: 80"));
  CHECK(refusal_of("[goodput]\nalert_below = -0.1").find("above 0") != std::string::npos);
  CHECK(refusal_of("[goodput]\nalert_below = nan").find("above 0") != std::string::npos);
  CHECK(refusal_of("[goodput]\nalert_below = 1\nwindow = \"1w\"").find("1d") != std::string::npos);
  CHECK(refusal_of("[goodput]\nwindows = [\"x\"]").find("'x' is not a window") !=
        std::string::npos);
  CHECK(refusal_of("[goodput]\nwindows = [1,2,3,4,5,6,7,8,9]").find("8 at most") !=
        std::string::npos);
  CHECK(refusal_of("[goodput]\ninterval = 0").find("at least 0.1") != std::string::npos);
  CHECK(refusal_of("[goodput]\nalert_command = [\"x\"]").find("alert_below") != std::string::npos);
}

TEST_CASE("goodput options: names of metrics may begin as those of the reference") {
  CHECK(options_of("")->prefix == "elastrun.");
  CHECK(options_of("[goodput]\nprefix = \"compute.googleapis.com/workload/\"\n")->prefix ==
        "compute.googleapis.com/workload/");
  for (const std::string_view bad : {"9lives.", "a b", "a{b}"}) {
    const auto said = refusal_of("[goodput]\nprefix = \"" + std::string(bad) + "\"\n");
    CHECK(said.find("begin the name of a metric") != std::string::npos);
  }
}

}  // namespace elastrun::spec
