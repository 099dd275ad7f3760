// SPDX-License-Identifier: Apache-2.0
#include "telemetry/record.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

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

const Value* Record::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const Attribute& one) { return one.first == attribute; });
  return found == attributes.end() ? nullptr : &found->second;
}

std::string Record::text(std::string_view attribute) const {
  const auto* const found = std::get_if<std::string>(find(attribute));
  return found == nullptr ? std::string() : *found;
}

std::optional<std::int64_t> Record::whole(std::string_view attribute) const {
  const auto* const found = std::get_if<std::int64_t>(find(attribute));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

bool Record::is(std::string_view attribute) const {
  const auto* flag = std::get_if<bool>(find(attribute));
  return flag != nullptr && *flag;
}

std::optional<double> as_real(const Value& value) {
  if (const auto* const real = std::get_if<double>(&value)) return *real;
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) {
    return static_cast<double>(*whole);
  }
  return std::nullopt;
}

std::string_view to_text(Severity severity) {
  constexpr std::array<std::string_view, 6> kNames = {"TRACE", "DEBUG", "INFO",
                                                      "WARN",  "ERROR", "FATAL"};
  const auto number = std::clamp<std::size_t>(static_cast<std::size_t>(severity), 1, 24);
  // OpenTelemetry has four numbers for each name, from 1 to 24.
  return kNames[(number - 1) / 4];
}

std::optional<Severity> severity_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Severity>, 8> kNames = {
      {{"trace", Severity::Trace},
       {"debug", Severity::Debug},
       {"info", Severity::Info},
       {"warn", Severity::Warn},
       {"warning", Severity::Warn},
       {"error", Severity::Error},
       {"fatal", Severity::Fatal},
       {"critical", Severity::Fatal}}};
  const auto small = to_lower(name.substr(0, 16));
  const auto* found =
      std::ranges::find(kNames, std::string_view(small), [](const auto& one) { return one.first; });
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace elastrun::telemetry
