// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <doctest/doctest.h>

using namespace elastrun;

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
