// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"

#include <doctest/doctest.h>
#include <limits>

using namespace elastrun;

TEST_CASE("json: a value is written as Python's json.dumps writes it") {
  json::object object;
  object["name"] = "grüße \"\\\n\x01\x7f 😀";
  object["list"] = {1, -2, 1.0, 0.1, 1e16, 1e-5, nullptr, true};
  object["empty"] = json::object();
  CHECK(python_json(object) ==
        R"({"name": "gr\u00fc\u00dfe \"\\\n\u0001\u007f \ud83d\ude00", )"
        R"("list": [1, -2, 1.0, 0.1, 1e+16, 1e-05, null, true], "empty": {}})");
}

TEST_CASE("json: bytes that are no UTF-8 are written as replacement characters") {
  CHECK(python_json(json::value("a\xff"
                                "b")) == R"("a\ufffdb")");
  CHECK(python_json(json::value("\xc3")) == R"("\ufffd")");
  CHECK(python_json(json::value("\xed\xa0\x80")) ==
        R"("\ufffd\ufffd\ufffd")");                                    // half a surrogate pair
  CHECK(python_json(json::value("\xc0\x80")) == R"("\ufffd\ufffd")");  // overlong
}

TEST_CASE("json: floats that are no numbers have Python's names") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(python_json(json::array{infinity, -infinity, std::nan("")}) ==
        "[Infinity, -Infinity, NaN]");
  CHECK(python_float(-infinity) == "-inf");
  CHECK(python_float(3) == "3.0");
}

TEST_CASE("json: a text that is cut anywhere is refused with a place") {
  const std::string good = R"({"a": [1, 2.5, "x\u00e9", null, {"b": true}]})";
  REQUIRE(parse_json(good));
  for (std::size_t size = 0; size < good.size(); ++size) {
    CAPTURE(size);
    const auto value = parse_json(good.substr(0, size));
    REQUIRE_FALSE(value);
    CHECK(value.error().code == Code::Protocol);
    CHECK(value.error().text.find("at byte") != std::string::npos);
  }
  CHECK_FALSE(parse_json(good + "x"));
  CHECK(parse_json(good + " \n"));
  CHECK_FALSE(parse_json(std::string(1000, '[')));
}

TEST_CASE("json: members are looked up without surprises") {
  const auto value = parse_json(R"({"n": 3, "big": 1e300, "t": "x", "d": 4.0})").value();
  CHECK(member_int_or(value, "n", 0) == 3);
  CHECK(member_int_or(value, "d", 0) == 4);
  CHECK(member_int_or(value, "big", 7) == 7);
  CHECK(member_int_or(value, "t", 7) == 7);
  CHECK(member_text_or(value, "t", "") == "x");
  CHECK(member_text_or(value, "n", "none") == "none");
  CHECK(find_member(json::value(3), "n") == nullptr);
}
