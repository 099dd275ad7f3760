// SPDX-License-Identifier: Apache-2.0
#include "workers/json_text.hpp"

#include "core/utf8.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>

namespace elastrun::workers {
namespace {

constexpr std::size_t kEscape = 6;  // \uXXXX
constexpr unsigned kHigh = 0xd800, kLow = 0xdc00, kEnd = 0xe000;

/// The code unit of an escape `\uXXXX` at the front; 0 if there is none.
unsigned unit_of(std::string_view text) {
  if (text.size() < kEscape || text[0] != '\\' || text[1] != 'u') return 0;
  unsigned unit = 0;
  const char* const end = text.data() + kEscape;
  const auto read = std::from_chars(text.data() + 2, end, unit, 16);
  return read.ptr == end ? unit : 0;
}

/// How many bytes at the front, of which the first is a backslash, belong together; `whole` tells
/// whether they are more than half of a character.
std::size_t escape_at(std::string_view text, bool& whole) {
  const unsigned unit = unit_of(text);
  whole = unit < kHigh || unit >= kEnd;
  if (whole) return std::min<std::size_t>(text.size(), 2);
  const unsigned next = unit < kLow ? unit_of(text.substr(kEscape)) : 0;
  whole = next >= kLow && next < kEnd;
  return whole ? 2 * kEscape : kEscape;
}

}  // namespace

std::string with_whole_characters(std::string_view json) {
  const std::string text = valid_utf8(json);
  std::string mended;
  mended.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    bool whole = true;
    const auto size = rest.front() == '\\' ? escape_at(rest, whole) : 1;
    mended += whole ? rest.substr(0, size) : std::string_view("\\ufffd");
    rest.remove_prefix(size);
  }
  return mended;
}

}  // namespace elastrun::workers
