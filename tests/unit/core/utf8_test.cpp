// SPDX-License-Identifier: Apache-2.0

#include "core/text.hpp"

#include <doctest/doctest.h>
#include <string>

using namespace elastrun;

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
