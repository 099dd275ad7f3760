// SPDX-License-Identifier: Apache-2.0
#include "telemetry/value.hpp"

#include <fmt/format.h>

namespace elastrun::telemetry {
namespace {

struct ToJson {
  json::value operator()(std::monostate) const { return nullptr; }
  json::value operator()(const std::string& text) const { return json::value(text); }
  json::value operator()(auto plain) const { return json::value(plain); }
};

struct ToText {
  // As Python's str() writes them: torchelastic's console handler prints values that way.
  std::string operator()(std::monostate) const { return "None"; }
  std::string operator()(bool flag) const { return flag ? "True" : "False"; }
  std::string operator()(std::int64_t number) const { return fmt::to_string(number); }
  std::string operator()(double number) const { return python_float(number); }
  std::string operator()(const std::string& text) const { return text; }
};

}  // namespace

json::value to_json(const Value& value) {
  return std::visit(ToJson{}, value);
}
Value to_value(const json::value& value) {
  switch (value.kind()) {
    case json::kind::bool_:
      return value.get_bool();
    case json::kind::int64:
      return value.get_int64();
    case json::kind::uint64:
      // Boost.JSON has uint64 only for what is above INT64_MAX.
      return static_cast<double>(value.get_uint64());
    case json::kind::double_:
      return value.get_double();
    case json::kind::string:
      return std::string(value.get_string());
    case json::kind::null:
      return std::monostate{};
    default:
      return python_json(value);
  }
}
std::string to_text(const Value& value) {
  return std::visit(ToText{}, value);
}

}  // namespace elastrun::telemetry
