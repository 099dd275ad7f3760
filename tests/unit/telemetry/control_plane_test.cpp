// SPDX-License-Identifier: Apache-2.0
#include "telemetry/control_plane.hpp"

#include "core/json.hpp"
#include "telemetry/wait_counter.hpp"

#include <doctest/doctest.h>
#include <stdexcept>

using namespace elastrun;
using namespace elastrun::telemetry::monitor;

TEST_CASE("control plane: C1, C3: a page that links to the list, and the list") {
  const ControlPlane plane;
  const auto page = plane.answer("GET", "/");
  CHECK(page.status == 200);
  CHECK(page.content_type == "text/html");
  CHECK(page.content.find("href=\"/handler/\"") != std::string::npos);
  const auto list = plane.answer("GET", "/handler/");
  CHECK(list.status == 200);
  CHECK(list.content == R"(["ping","wait_counter_values"])");
}

TEST_CASE("control plane: C2, C4: a known handler answers, an unknown one is told by name") {
  const ControlPlane plane;
  const auto pong = plane.answer("POST", "/handler/ping");
  CHECK(pong.status == 200);
  CHECK(pong.content == "pong");
  CHECK(pong.content_type == "text/plain");
  const auto none = plane.answer("POST", "/handler/nonexistent");
  CHECK(none.status == 404);
  CHECK(none.content.starts_with("Handler nonexistent not found:"));
  CHECK(plane.answer("GET", "/handler/ping").status == 405);
  CHECK(plane.answer("POST", "/other").status == 404);
}

TEST_CASE("control plane: C5: a handler that throws is an answer, too; names are taken once") {
  ControlPlane plane;
  REQUIRE(plane.add("bad", [](const ControlRequest&) -> ControlResponse {
    throw std::runtime_error("it broke");
  }));
  CHECK_FALSE(plane.add("ping", {}));
  const auto bad = plane.answer("POST", "/handler/bad");
  CHECK(bad.status == 500);
  CHECK(bad.content.find("it broke") != std::string::npos);
}

TEST_CASE("control plane: C7: a flag is true or false in lower case") {
  const ControlRequest request{.parameters = {{"onlyactive", "true"}, {"x", "False"}, {"y", "1"}}};
  CHECK(flag_of(request, "onlyactive", false) == true);
  CHECK(flag_of(request, "missing", true) == true);
  CHECK_FALSE(flag_of(request, "x", false).has_value());
  CHECK_FALSE(flag_of(request, "y", false).has_value());
}

TEST_CASE("wait counter: C8, M17: calls, those under way, and their times") {
  for (int i = 0; i < 3; ++i) {
    auto guard = WaitGuard(wait_counter("test_counter"));
    const auto moved = std::move(guard);
  }
  const WaitGuard open(wait_counter("test_open"));
  const ControlPlane plane;
  const auto answer = plane.answer("POST", "/handler/wait_counter_values");
  const auto values = parse_json(answer.content);
  REQUIRE(values);
  const auto* const one = find_member(*values, "test_counter");
  REQUIRE(one != nullptr);
  CHECK(member_int_or(*one, "total_calls", -1) == 3);
  CHECK(member_int_or(*one, "active_count", -1) == 0);
  CHECK(member_int_or(*one, "total_time_us", -1) >= 0);
  CHECK(member_int_or(*one, "max_time_us", -1) >= 0);
  CHECK(member_int_or(*find_member(*values, "test_open"), "active_count", -1) == 1);
}
