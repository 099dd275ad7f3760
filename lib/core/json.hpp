// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>

/// JSON is Boost.JSON, compiled once in core/json.cpp. Objects keep the order of insertion. Costs a
/// second to compile: other headers include it only where JSON itself is handed over.
namespace elastrun {

namespace json = boost::json;

/// One complete JSON text. Fails with Protocol and says at which byte and why; never throws.
/// Nesting is limited to 64 levels, so that a hostile text cannot exhaust the stack.
Result<json::value> parse_json(std::string_view text);

/// The text that Python's `json.dumps(value, separators=(comma, colon))` writes: one line,
/// everything outside ASCII as \uXXXX. Bytes that are not valid UTF-8 become U+FFFD.
std::string python_json(const json::value& value, std::string_view comma = ", ",
                        std::string_view colon = ": ");
/// Writes a float as Python's repr(): "1.0", "0.1", "1e-05", "inf", "nan".
std::string python_float(double value);

/// The member of that name, or null when `value` is not an object or lacks it.
const json::value* find_member(const json::value& value, std::string_view name);
/// A member that may lack a value: null then.
json::value text_or_null(const std::string& text);
template <class T>
json::value or_null(const std::optional<T>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}
/// Returns the member if it is a text, or a number that fits; otherwise `otherwise`.
std::string member_text_or(const json::value& value, std::string_view name, std::string otherwise);
std::int64_t member_int_or(const json::value& value, std::string_view name, std::int64_t otherwise);

}  // namespace elastrun
