// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <string>

using namespace elastrun;
using namespace std::chrono_literals;

TEST_CASE("text: seconds that nanoseconds cannot tell become the most that they can") {
  CHECK(from_seconds(1.5) == std::chrono::milliseconds(1500));
  CHECK(from_seconds(1e300) == from_seconds(9.2e9));
  CHECK(from_seconds(-std::numeric_limits<double>::infinity()) == -from_seconds(9.2e9));
  CHECK(from_seconds(std::nan("")) == Duration::zero());
}

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
  CHECK(parse_float("-1e999") == -std::numeric_limits<double>::infinity());
  CHECK(parse_float("1e-999") == 0.0);
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

namespace {

const std::string kMark = "\xEF\xBF\xBD";                          // U+FFFD
const std::string kAll = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80";  // one character of each length

}  // namespace

TEST_CASE("utf8: what is valid stays as it is") {
  CHECK(valid_utf8("").empty());
  CHECK(valid_utf8(kAll) == kAll);
  CHECK(valid_utf8(kMark) == kMark);
}

TEST_CASE("utf8: each byte that is not valid is replaced, and nothing around it") {
  CHECK(valid_utf8("a\xE2\x82z") == "a" + kMark + kMark + "z");
  CHECK(valid_utf8("\x80\xFFz") == kMark + kMark + "z");
  CHECK(valid_utf8("\xC0\xAF") == kMark + kMark);              // "/", written too long
  CHECK(valid_utf8("\xED\xA0\x80") == kMark + kMark + kMark);  // half of a surrogate pair
  CHECK(valid_utf8("\xF4\x90\x80\x80") == kMark + kMark + kMark + kMark);  // above U+10FFFF
}

TEST_CASE("utf8: a cut never ends inside a character, and takes no more than it must") {
  const std::string text = kAll + kAll;
  for (std::size_t size = 0; size <= text.size(); ++size) {
    CAPTURE(size);
    const auto beginning = cut(text, size);
    CHECK(beginning.size() <= size);
    CHECK(size - beginning.size() <= 3);
    CHECK(valid_utf8(beginning) == beginning);
  }
  CHECK(cut(text, 1000) == text);
  // Bytes that are no characters cannot be cut apart.
  CHECK(cut(std::string(10, '\x80'), 5).size() == 5);
}

TEST_CASE("utf8: what is fit to be shown is valid and whole") {
  std::string euros;
  for (int i = 0; i < 400; ++i) euros += "\xE2\x82\xAC";
  const std::string shown = printable(euros);
  CHECK(shown.size() == 498);
  CHECK(valid_utf8(shown) == shown);
  CHECK(printable("a\x1b[31m\xFF") == "a[31m" + kMark);
  // U+202E turns what follows round, U+0085 and U+2028 end a line.
  CHECK(printable("job\u202Egpj.exe\u0085\u2028\u2067\u200F") == "jobgpj.exe");
  CHECK(printable("für \U0001F600") == "für \U0001F600");
}

TEST_CASE("escapes: plain text stays as it is") {
  for (const char* text :
       {"", "a line", "\ttabs\t", "[31m]0;", "gr\xC3\xBC\xC3\x9F \xE2\x9C\x93"}) {
    CHECK(without_escapes(text) == text);
  }
}

TEST_CASE("escapes: colours, titles, links and screens are removed") {
  // Python 3.13, FORCE_COLOR=1
  CHECK(without_escapes("\x1b[1;35mValueError\x1b[0m: \x1b[35mboom\x1b[0m") == "ValueError: boom");
  CHECK(without_escapes("\x1b[?1049h\x1b[2J\x1b[1;1Hon the other screen") == "on the other screen");
  CHECK(without_escapes("\x1b]0;a title\a1\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\2") == "1link2");
  CHECK(without_escapes("a\x1bP1$r0m\x1b\\b\x1b(Bc\x1b"
                        "7d\x1b#8e\x1b[>4;2m\x1b[0 qf") == "abcdef");
}

TEST_CASE("escapes: control characters steer nothing, in one byte or in two") {
  CHECK(without_escapes("a\b\r\x0e"
                        "b\x7f") == "ab");
  CHECK(without_escapes("a\xC2\x9B"
                        "2Jb") == "a2Jb");  // CSI of ISO 6429 in UTF-8
  CHECK(without_escapes("a\x9B"
                        "2Jb") ==
        "a\xEF\xBF\xBD"
        "2Jb");
  CHECK(without_escapes(std::string_view("a\0b", 3)) == "ab");
}

TEST_CASE("escapes: a sequence cut at any length shows nothing of itself") {
  for (const std::string_view whole :
       {"\x1b[1;35m", "\x1b]0;title\a", "\x1b]8;;x\x1b\\", "\x1b(B", "\x1b[0 q"}) {
    for (std::size_t size = 0; size <= whole.size(); ++size) {
      CHECK(without_escapes(whole.substr(0, size)).empty());
    }
  }
}
