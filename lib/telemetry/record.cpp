// SPDX-License-Identifier: Apache-2.0
#include "telemetry/record.hpp"

#include <algorithm>
#include <array>

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
  return kNames[(number - 1) / 4];
}

}  // namespace elastrun::telemetry
