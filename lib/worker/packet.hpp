// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <string>
#include <string_view>

namespace elastrun::worker {
namespace detail {
/// How many bytes the UTF-8 character has with which `text`, not empty, begins; 0: it is none.
inline std::size_t character_size(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (size == 0 || first > 0xf4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than need be, half of a surrogate pair, or beyond the last one.
  const unsigned second = byte(1);
  const bool none = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                    (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return none ? 0 : size;
}
}  // namespace detail

/// Text as a JSON string, quotes included. A byte that is not UTF-8 becomes U+FFFD: the agent would
/// refuse the packet.
inline std::string quoted(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) {
      const auto size = detail::character_size(text.substr(i));
      size == 0 ? out.append("\\ufffd") : out.append(text.substr(i, size));
      i += size == 0 ? 0 : size - 1;
      continue;
    }
    if (c == '"' || c == '\\') {
      out.append({'\\', c});
    } else if (byte < 0x20) {
      out.append("\\u00").append({kDigits[byte >> 4], kDigits[byte & 15]});
    } else {
      out.push_back(c);
    }
  }
  return out + '"';
}

/// JSON has no NaN and no infinity, so these travel as the text that Python gives them.
inline std::string number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

namespace detail {
/// At most that many bytes of UTF-8, whole characters: the agent refuses half of one.
inline std::string_view cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

/// Seconds since the epoch, to the microsecond.
inline std::string time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto micro = std::to_string(1'000'000 + now.tv_nsec / 1000);
  return std::to_string(now.tv_sec) + '.' + micro.substr(1);
}

/// With `*` for any text and `?` for any byte. Where a text after a star does not fit, the last
/// star alone takes one more: no pattern takes longer than its length times that of the name.
inline bool fits(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, star = pattern.npos, taken = 0;
  for (std::size_t i = 0; i < name.size();) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[i])) {
      ++at, ++i;
    } else if (star != pattern.npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == pattern.npos;
}
}  // namespace detail

}  // namespace elastrun::worker
