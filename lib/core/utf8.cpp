// SPDX-License-Identifier: Apache-2.0
#include "core/utf8.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cstdlib>

namespace elastrun {

char32_t take_code_point(std::string_view& text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  // 0xC0 and 0xC1 could only begin overlong forms, 0xF5 what is beyond U+10FFFF (RFC 3629).
  const std::size_t size = first < 0x80   ? 1
                           : first < 0xC2 ? 0
                           : first < 0xE0 ? 2
                           : first < 0xF0 ? 3
                           : first < 0xF5 ? 4
                                          : 0;
  bool good = size != 0 && text.size() >= size;
  char32_t point = size == 1 ? first : first & (0x7Fu >> size);
  for (std::size_t i = 1; good && i < size; ++i) {
    good = (byte(i) & 0xC0) == 0x80;
    point = (point << 6) | (byte(i) & 0x3Fu);
  }
  // Neither overlong forms nor halves of surrogate pairs are UTF-8 (RFC 3629).
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  good =
      good && point >= kSmallest[size] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
  text.remove_prefix(good ? size : 1);
  return good ? point : 0xFFFD;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const bool replaced = take_code_point(text) == 0xFFFD;
    out += replaced ? "\xEF\xBF\xBD" : before.substr(0, before.size() - text.size());
  }
  return out;
}

namespace {

bool is_control(char32_t point) {
  // With the marks that turn the direction of text or break a line: no name may redraw a terminal.
  return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x061C || point == 0x200E ||
         point == 0x200F || (point >= 0x2028 && point <= 0x202E) ||
         (point >= 0x2066 && point <= 0x2069);
}

}  // namespace

std::string without_controls(std::string_view text, std::string_view kept) {
  // Nearly every text is of these alone.
  const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
  if (std::ranges::all_of(text, plain)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const char32_t point = take_code_point(text);
    if (point == 0xFFFD) out += "\xEF\xBF\xBD";
    const bool shown = !is_control(point) || kept.contains(before.front());
    if (point != 0xFFFD && shown) out += before.substr(0, before.size() - text.size());
  }
  return out;
}

std::string_view cut(std::string_view text, std::size_t size) {
  if (text.size() <= size) return text;
  constexpr std::size_t kLongestRest = 3;  // a character has at most three bytes behind its first
  std::size_t end = size;
  const auto is_rest = [&](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  while (end > 0 && size - end < kLongestRest && is_rest(end)) --end;
  return text.substr(0, is_rest(end) ? size : end);
}

bool locale_is_utf8() {
  // In the order of setlocale(3).
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const auto locale = to_lower(value);
    return locale.contains("utf-8") || locale.contains("utf8");
  }
  return false;
}

}  // namespace elastrun
