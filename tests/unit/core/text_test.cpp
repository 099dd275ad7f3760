// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <cmath>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace std::chrono_literals;

TEST_CASE("text: what would mean something to a reader is escaped") {
  CHECK(escaped("it's a [b]\\", "'[]\\") == "it\\'s a \\[b\\]\\\\");
  CHECK(escaped("", "x").empty());
  CHECK(escaped("abc", "") == "abc");
}

TEST_CASE("text: integers are read as Python's int() reads them") {
  CHECK(parse_int(" +1_0 ") == 10);
  CHECK(parse_int("-1") == -1);
  CHECK(parse_int("007") == 7);
  for (const char* bad : {"", " ", "1.0", "1__0", "_1", "1_", "0x10", "+-1", "+", "1 2", "9e3",
                          "99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_int(bad));
  }
}

TEST_CASE("text: floats are read as Python's float() reads them") {
  CHECK(parse_float("5e-2") == 0.05);
  CHECK(parse_float(" .5 ") == 0.5);
  CHECK(parse_float("+1_0.5") == 10.5);
  CHECK(std::isinf(parse_float("inf").value()));
  CHECK(std::isnan(parse_float("nan").value()));
  CHECK(parse_float("1e999") == std::numeric_limits<double>::infinity());
  for (const char* bad : {"", "fast", "1,5", "1e", "+-1", "1__0"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_float(bad));
  }
}

TEST_CASE("text: durations are written for people") {
  CHECK(format_duration(850us) == "850 us");
  CHECK(format_duration(-850us) == "-850 us");
  CHECK(format_duration(Duration::min()) == "-2562047 h 47 min");
  CHECK(format_duration(1300us) == "1.3 ms");
  CHECK(format_duration(12400ms) == "12.4 s");
  CHECK(format_duration(185s) == "3 min 05 s");
  CHECK(format_duration(7620s) == "2 h 07 min");
  CHECK(format_duration(-5s) == "-5.0 s");
}

TEST_CASE("text: the nearest word is offered only if it is near") {
  const std::vector<std::string> words{"max-restarts", "role", "tee"};
  CHECK(nearest("max-restart", words) == "max-restarts");
  CHECK(nearest("rol", words) == "role");
  CHECK_FALSE(nearest("banana", words));
}

TEST_CASE("text: split keeps empty pieces, join puts them together again") {
  CHECK(split("a,,b", ',') == std::vector<std::string>{"a", "", "b"});
  CHECK(split("", ',') == std::vector<std::string>{""});
  CHECK(join({"a", "", "b"}, ",") == "a,,b");
}

TEST_CASE("text: random identifiers have their form and differ") {
  CHECK(random_uuid().size() == 36);
  CHECK(random_uuid()[14] == '4');
  CHECK(random_text(8) != random_text(8));
}
