// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"

#include "core/text.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/visit.hpp>
#include <fmt/format.h>
// Boost.JSON's own sources, compiled once for the whole program: Debian ships it only shared.
#include <boost/json/src.hpp>
#include <cmath>
#include <concepts>
#include <utility>

namespace elastrun {
namespace {

// What comes over a wire may be nested without end, and those who read it recurse.
constexpr std::size_t kDeepest = 64;

void append_escaped(std::string& out, char32_t point) {
  constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  const auto at = point < 0x7F ? kSpecial.find(static_cast<char>(point)) : kSpecial.npos;
  // As json.dumps() of Python, which by default writes ASCII alone.
  if (at != kSpecial.npos) {
    (out += '\\') += kLetters[at];
  } else if (point >= 0x20 && point < 0x7F) {
    out += static_cast<char>(point);
  } else if (point < 0x10000) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(point));
  } else {
    const auto rest = static_cast<unsigned>(point) - 0x10000;
    fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10),
                   0xDC00 + (rest & 0x3FF));
  }
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) append_escaped(out, take_code_point(text));
  out += '"';
}

void append_float(std::string& out, double value) {
  // Python's names in JSON differ from those of repr().
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
  } else {
    out += python_float(value);
  }
}

struct PythonWriter {
  std::string& out;
  std::string_view comma, colon;

  void operator()(std::nullptr_t) const { out += "null"; }
  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(std::integral auto value) const { out += fmt::format_int(value).c_str(); }
  void operator()(double value) const { append_float(out, value); }
  void operator()(const json::string& text) const { append_string(out, text); }
  void operator()(const json::array& array) const {
    list("[]", array, [this](const json::value& element) { json::visit(*this, element); });
  }
  void operator()(const json::object& object) const {
    list("{}", object, [this](const json::key_value_pair& member) {
      append_string(out, member.key());
      out += colon;
      json::visit(*this, member.value());
    });
  }
  void list(std::string_view brackets, const auto& all, auto each) const {
    out += brackets.front();
    for (std::string_view separator; const auto& one : all) {
      out += std::exchange(separator, comma);
      each(one);
    }
    out += brackets.back();
  }
};

}  // namespace

Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kDeepest;
  json::stream_parser parser({}, options);
  json::error_code error;
  std::size_t used = parser.write_some(text, error);
  // write_some() stops behind the first value.
  if (!error && used < text.size()) error = json::make_error_code(json::error::extra_data);
  if (!error) parser.finish(error);
  if (error) {
    return fail(Code::Protocol, fmt::format("no valid JSON at byte {}: {}", used, error.message()));
  }
  return parser.release();
}

std::string python_json(const json::value& value, std::string_view comma, std::string_view colon) {
  std::string out;
  json::visit(PythonWriter{out, comma, colon}, value);
  return out;
}

std::string python_float(double value) {
  std::string text = fmt::format("{}", value);
  // Python writes a float that is whole with a point.
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

const json::value* find_member(const json::value& value, std::string_view name) {
  const json::object* object = value.if_object();
  return object == nullptr ? nullptr : object->if_contains(name);
}

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

std::string member_text_or(const json::value& value, std::string_view name, std::string otherwise) {
  const json::value* member = find_member(value, name);
  if (member == nullptr || !member->is_string()) return otherwise;
  return std::string(member->get_string());
}

std::int64_t member_int_or(const json::value& value, std::string_view name,
                           std::int64_t otherwise) {
  const json::value* member = find_member(value, name);
  if (member == nullptr) return otherwise;
  json::error_code error;
  const auto number = member->to_number<std::int64_t>(error);
  return error ? otherwise : number;
}

}  // namespace elastrun
