// SPDX-License-Identifier: Apache-2.0
#include "workers/message_members.hpp"

#include "core/text.hpp"
#include "workers/message.hpp"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace elastrun::workers::members {

namespace json = boost::json;

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

std::unexpected<Error> refuse(std::string_view what) {
  return fail(Code::Protocol, fmt::format("a message of a worker {}", what));
}

std::optional<std::string> name_of(const json::value* value) {
  const auto* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr || text->size() > kMaxName) return std::nullopt;
  return without_controls(*text);
}

std::optional<std::string> text_in(const json::object& object, std::string_view key) {
  return name_of(object.if_contains(key));
}

std::optional<std::int64_t> whole(const json::object& object, std::string_view key) {
  const auto* value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? std::optional(value->get_int64()) : std::nullopt;
}

std::optional<double> number_of(const json::value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) return static_cast<double>(value->get_int64());
  if (value->is_uint64()) return static_cast<double>(value->get_uint64());
  if (value->is_double()) return value->get_double();
  if (value->is_string()) return parse_float(std::string_view(value->get_string()));
  return std::nullopt;
}

std::optional<double> time_of(const json::value* value) {
  const auto seconds = number_of(value);
  // Nanoseconds of more would not fit into 64 bits.
  return seconds && *seconds > 0 && *seconds < 9e9 ? seconds : std::nullopt;
}

}  // namespace elastrun::workers::members
