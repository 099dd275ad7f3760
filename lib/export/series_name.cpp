// SPDX-License-Identifier: Apache-2.0
#include "export/series_name.hpp"

#include <string_view>
#include <variant>

namespace elastrun::exporter {

std::string series_name(const telemetry::Record& record) {
  const bool of_worker = record.find("rank") != nullptr;
  const bool of_device = record.find("hw.id") != nullptr && record.find("index") != nullptr;
  std::string name = record.name;
  for (const auto& [key, value] : record.attributes) {
    const auto* const text = std::get_if<std::string>(&value);
    if (text == nullptr || (of_worker && key == "role")) continue;
    if (of_device && (key == "hw.id" || key == "hw.type" || key == "hw.model")) continue;
    name.append("/").append(key).append("_").append(*text);
  }
  return name;
}

}  // namespace elastrun::exporter
