// SPDX-License-Identifier: Apache-2.0
#include "workers/message_members.hpp"

#include "core/text.hpp"
#include "core/utf8.hpp"
#include "workers/message.hpp"

#include <fmt/format.h>

namespace elastrun::workers::members {

namespace json = boost::json;

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
