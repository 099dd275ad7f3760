// SPDX-License-Identifier: Apache-2.0
#include "telemetry/record.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace elastrun::telemetry {

const Value* Record::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const Attribute& one) { return one.first == attribute; });
  return found == attributes.end() ? nullptr : &found->second;
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
